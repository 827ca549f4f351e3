"""Answers that are spans of a text, as in SQuAD.

    bertjax finetune --config finetune/qa --workdir runs/qa \\
        --config.init_from=FOLDER \\
        --config.task.train=squad:train-v1.1.json --config.task.eval=squad:dev-v1.1.json

SQuAD 2.0, where questions may have no answer: `--config.task.qa.allow_no_answer=true`.
`finetune/qa:electra` takes the recipe of another family; bertjax/config/finetune_recipes.py
has the sources of all.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import RECIPES, base_config, make_task

SIZES = tuple(RECIPES)


def get_config(recipe: str = "bert") -> ConfigDict:
    return make_task(base_config(), "qa", recipe)
