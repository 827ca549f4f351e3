"""Phases of recipes: their settings as text, and their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.fields import format_value


def phase_text(share: float, settings: Mapping[str, Any]) -> str:
    """Returns an item of `train.phases`: settings for a share of the run."""
    return f"{100 * share:.4f}%:" + ",".join(f"{key}={format_value(value)}" for key, value in settings.items())


def set_phase_sources(config: ConfigDict, folder: str) -> None:
    """Gives the phases of a config the sources that FOLDER/phase-1.txt and so on name; no folder changes nothing."""
    if folder:
        phases = config.train.phases
        lists = [f"@{folder.rstrip('/')}/phase-{number + 1}.txt" for number in range(len(phases) + 1)]
        config.train.phases = tuple(
            f"{phase},data.sources={text}" for phase, text in zip(phases, lists[:-1], strict=True)
        )
        config.data.sources = (lists[-1],)
