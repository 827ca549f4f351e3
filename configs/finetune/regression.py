"""Numbers for texts or pairs of texts, such as their likeness.

    bertjax finetune --config configs/finetune/regression.py --workdir runs/regression \\
        --config.init_from=FOLDER \\
        --config.task.train=tsv:train.tsv --config.task.eval=tsv:dev.tsv \\
        --config.task.text_column=first --config.task.pair_column=second

The label is a number.
`regression.py:electra` takes the recipe of another family: bert, bert-small, roberta, albert, xlnet, electra,
electra-large, deberta, deberta-large, finbert, finbert-code, ulmfit
(bertjax/config/defaults/finetune_recipes.py has their sources).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_task


def get_config(recipe: str = "bert") -> ConfigDict:
    return make_task(base_config(), "regression", recipe)
