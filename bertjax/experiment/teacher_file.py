"""teacher.json in a work folder: what must be known of a teacher to read a run back when the teacher itself is gone."""

from __future__ import annotations

import json
from pathlib import Path

from bertjax.errors import UserError
from bertjax.experiment.workdir import write_whole
from bertjax.hf import native_format
from bertjax.objectives.base import Network

NAME = "teacher.json"


def write_teacher(workdir: Path, teacher: Network) -> None:
    write_whole(workdir / NAME, json.dumps(native_format.fields(teacher.config, teacher.heads), indent=1) + "\n")


def stored_teacher(workdir: Path) -> Network | None:
    """The teacher of the run in a work folder, as a description; None for a run that had none."""
    path = workdir / NAME
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a JSON object")
    return Network(*native_format.read_fields(values, str(path)))
