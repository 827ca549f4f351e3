"""Answers that are spans of a text, as in SQuAD.

    bertjax finetune --config configs/finetune/qa.py --workdir runs/qa \\
        --config.init_from=FOLDER \\
        --config.task.train=squad:train-v1.1.json --config.task.eval=squad:dev-v1.1.json

SQuAD 2.0, where questions may have no answer: `--config.task.qa.allow_no_answer=true`.
`qa.py:electra` takes the recipe of another family: bert, bert-small, roberta, albert, xlnet, electra,
electra-large, deberta, deberta-large, finbert, finbert-code, ulmfit
(bertjax/config/defaults/finetune_recipes.py has their sources).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_task


def get_config(recipe: str = "bert") -> ConfigDict:
    return make_task(base_config(), "qa", recipe)
