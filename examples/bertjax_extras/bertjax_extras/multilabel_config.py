"""Settings of multi-label classification. Imports no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bertjax.extensions import TaskKind, setting

SCORES = ("precision", "recall", "f1")


@dataclasses.dataclass(frozen=True)
class MultiLabelKind(TaskKind, group="task.multilabel"):
    """Any number of labels per text, as in GoEmotions (arXiv:2005.00547)."""

    name, title, head = "multilabel", "multi-label classification", "sequence_classification"
    task_class = "bertjax_extras.multilabel:MultiLabel"
    main_metric, label_array = "micro_f1", "multi_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "exact_match": ("share", "Texts whose labels are all right."),
        **{f"{mean}_{name}": ("share", f"{name} of the labels") for mean in ("micro", "macro") for name in SCORES},
    }
    has_classes = reads_texts = True

    separator: str = setting(",", help="Separates the labels of a text in the column of `task.label_column`.")
    threshold: float = setting(0.5, above=0.0, below=1.0, help="Probability from which a label is predicted.")
