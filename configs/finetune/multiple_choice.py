"""The right one of several choices; a layout of published data, or `context`, `question`, `choices` and `label`.

    bertjax finetune --config finetune/multiple_choice --workdir runs/choices \\
        --config.init_from=FOLDER \\
        --config.task.train=jsonl:train.jsonl --config.task.eval=jsonl:dev.jsonl

`finetune/multiple_choice:swag`, `race`, `hellaswag`, `arc` and `dream` name the columns of these data sets as they are
on the Hub and in their files of JSON Lines; `finetune/multiple_choice:electra` takes the recipe of another family
(bertjax/config/finetune_recipes.py). The label is the number of the right choice from 0, its letter, or its
text. The first text of the model is the context, the second one the question, if there is one, and the choice.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from bertjax.config.defaults import RECIPES, base_config, make_task

LAYOUTS: dict[str, dict[str, Any]] = {
    # arXiv:1808.05326, allenai/swag: sent2 is the beginning of every ending
    "swag": {
        "task.text_column": "sent1",
        "task.multiple_choice.question_column": "sent2",
        "task.multiple_choice.choice_columns": ("ending0", "ending1", "ending2", "ending3"),
    },
    # arXiv:1905.07830, Rowan/hellaswag
    "hellaswag": {"task.text_column": "ctx", "task.multiple_choice.choices_column": "endings"},
    # arXiv:1704.04683, ehovy/race
    "race": {
        "task.text_column": "article",
        "task.multiple_choice.question_column": "question",
        "task.multiple_choice.choices_column": "options",
        "task.label_column": "answer",
        "task.max_length": 512,
        "task.truncation": "only_first",
    },
    # arXiv:1803.05457, allenai/ai2_arc: no context, so the question is the first text
    "arc": {"task.text_column": "question", "task.label_column": "answerKey"},
    # arXiv:1902.00164, one question per line; the answer is the text of a choice
    "dream": {
        "task.text_column": "dialogue",
        "task.multiple_choice.question_column": "question",
        "task.multiple_choice.choices_column": "choice",
        "task.label_column": "answer",
        "task.max_length": 256,
        "task.truncation": "only_first",
    },
}
SIZES = (*RECIPES, *LAYOUTS)


def get_config(recipe: str = "bert") -> ConfigDict:
    config = make_task(base_config(), "multiple_choice", "bert" if recipe in LAYOUTS else recipe)
    config.task.batch_size = 16
    config.update_from_flattened_dict(LAYOUTS.get(recipe, {}))
    return config
