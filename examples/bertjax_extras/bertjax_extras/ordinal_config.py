"""Settings of ordinal classification. Imports no jax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from bertjax.extensions import TaskKind, setting


@dataclasses.dataclass(frozen=True)
class OrdinalKind(TaskKind, group="task.ordinal"):
    """Classes in an order, such as one to five stars, with soft labels (SORD, Diaz and Marathe, CVPR 2019)."""

    name, title, head = "ordinal", "ordinal classification", "sequence_classification"
    task_class = "bertjax_extras.ordinal:Ordinal"
    main_metric, label_array = "kappa", "class_labels"
    metrics: ClassVar[dict[str, tuple[str, str]]] = {
        "kappa": ("-1 to 1", "Cohen's kappa with quadratic weights."),
        "distance": ("classes", "Mean distance of the predicted class from the right one."),
    }
    has_classes = reads_texts = True

    sharpness: float = setting(2.0, above=0.0, help="Soft labels are the softmax of -sharpness times the distance.")
