"""Any number of labels per text or pair of texts; the threshold is tuned.

    bertjax finetune --config finetune/multilabel --workdir runs/multilabel \\
        --config.init_from=FOLDER \\
        --config.task.train=jsonl:train.jsonl --config.task.eval=jsonl:dev.jsonl

Labels are lists of names in `task.label_column`, text such as `joy,relief` (`task.multilabel.separator`), or columns of
0 and 1: `--config.task.multilabel.label_columns=toxic,insult`.
`finetune/multilabel:electra` takes the recipe of another family; bertjax/config/finetune_recipes.py
has the sources of all.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from bertjax.config.defaults import RECIPES, base_config, make_task

SIZES = tuple(RECIPES)


def get_config(recipe: str = "bert") -> ConfigDict:
    config = make_task(base_config(), "multilabel", recipe)
    config.task.multilabel.tune_thresholds = "one"
    return config
