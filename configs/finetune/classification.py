"""Classes of texts or of pairs of texts.

    bertjax finetune --config finetune/classification --workdir runs/classification \\
        --config.init_from=FOLDER \\
        --config.task.train=tsv:train.tsv --config.task.eval=tsv:dev.tsv --config.task.text_column=sentence

`--config.task.pair_column=COLUMN` names the second text of pairs.
`finetune/classification:electra` takes the recipe of another family; bertjax/config/finetune_recipes.py
has the sources of all.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import RECIPES, base_config, make_task

SIZES = tuple(RECIPES)


def get_config(recipe: str = "bert") -> ConfigDict:
    return make_task(base_config(), "classification", recipe)
