"""Classes of texts or of pairs of texts.

    bertjax finetune --config configs/finetune/classification.py --workdir runs/classification \\
        --config.init_from=FOLDER \\
        --config.task.train=tsv:train.tsv --config.task.eval=tsv:dev.tsv --config.task.text_column=sentence

`--config.task.pair_column=COLUMN` names the second text of pairs.
`classification.py:electra` takes the recipe of another family: bert, bert-small, roberta, albert, xlnet, electra,
electra-large, deberta, deberta-large, finbert, finbert-code, ulmfit
(bertjax/config/defaults/finetune_recipes.py has their sources).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_task


def get_config(recipe: str = "bert") -> ConfigDict:
    return make_task(base_config(), "classification", recipe)
