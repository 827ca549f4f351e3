"""Labels of words: entities, parts of speech.

    bertjax finetune --config configs/finetune/tokens.py --workdir runs/tokens \\
        --config.init_from=FOLDER \\
        --config.task.train=conll:train.txt --config.task.eval=conll:dev.txt

Words and tags are the first and the last column of CoNLL files.
`tokens.py:electra` takes the recipe of another family: bert, bert-small, roberta, albert, xlnet, electra,
electra-large, deberta, deberta-large, finbert, finbert-code, ulmfit
(bertjax/config/defaults/finetune_recipes.py has their sources).
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config, make_task


def get_config(recipe: str = "bert") -> ConfigDict:
    return make_task(base_config(), "tokens", recipe)
