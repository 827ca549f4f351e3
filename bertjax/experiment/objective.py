"""The objective of a config, for a training loop of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.experiment import build
from bertjax.experiment.config import load_config, parse
from bertjax.objectives.base import Objective
from bertjax.types import Vocabulary


def make_objective(
    config: str | os.PathLike[str] | ConfigDict, vocabulary: Vocabulary, overrides: Mapping[str, Any] | None = None
) -> Objective:
    """Builds the pretraining objective of a config, with its networks, for a training loop of one's own.

    Args:
        config: Name, path or value of a config.
        vocabulary: That of the tokenizer: `batches(config).vocabulary`.
        overrides: Values by dotted key.

    Returns:
        The objective: `init(key)` draws the parameters, `mean_loss(params, batch, key, cursor)` is the loss.

    Raises:
        UserError: The config is not valid, or the objective needs a teacher.
    """
    return build.make_objective(parse(load_config(config, overrides)), vocabulary)
