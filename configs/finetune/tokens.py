"""Labels of words: entities, parts of speech.

    bertjax finetune --config finetune/tokens --workdir runs/tokens \\
        --config.init_from=FOLDER \\
        --config.task.train=conll:train.txt --config.task.eval=conll:dev.txt

Words and tags are the first and the last column of CoNLL files.
`finetune/tokens:electra` takes the recipe of another family; bertjax/config/finetune_recipes.py
has the sources of all.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import RECIPES, base_config, make_task

SIZES = tuple(RECIPES)


def get_config(recipe: str = "bert") -> ConfigDict:
    return make_task(base_config(), "tokens", recipe)
