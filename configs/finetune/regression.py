"""Numbers for texts or pairs of texts, such as their likeness.

    bertjax finetune --config finetune/regression --workdir runs/regression \\
        --config.init_from=FOLDER \\
        --config.task.train=tsv:train.tsv --config.task.eval=tsv:dev.tsv \\
        --config.task.text_column=first --config.task.pair_column=second

The label is a number.
`finetune/regression:electra` takes the recipe of another family; bertjax/config/finetune_recipes.py
has the sources of all.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import RECIPES, base_config, make_task

SIZES = tuple(RECIPES)


def get_config(recipe: str = "bert") -> ConfigDict:
    return make_task(base_config(), "regression", recipe)
