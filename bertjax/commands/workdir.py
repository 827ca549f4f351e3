"""The work folder: what it holds, whose it is, and whether a config may go on with it. Needs no jax."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.overrides import differences, from_json, to_json
from bertjax.types import UserError

# Keys that may change when a run is taken up again; a change of any other key would make it another run.
MAY_CHANGE = re.compile(
    r"train\.(num_steps|log_interval_steps|microbatches|on_fault|max_faults|spike_factor|skip_batches)"
    r"|data\.(cache_dir|workers)|objective\.teacher"
    r"|(schedule|eval|checkpoint|mesh|distributed|export|logging|profile)\..*|dry_run|platform|deterministic|compile_cache|init_(from|embeddings|positions)"
)

Change = tuple[str, Any, Any]


def claim(workdir: Path, cfg: ConfigDict) -> None:
    """Makes the folder this run's own: from here on it has a config.json."""
    workdir.mkdir(parents=True, exist_ok=True)
    write_whole(workdir / "config.json", to_json(cfg))


def changed_keys(workdir: Path, cfg: ConfigDict) -> list[Change]:
    """The keys that changed since the folder's checkpoints were made; touches nothing.

    Raises `UserError` when the folder holds another experiment or foreign files.
    """
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f"--workdir {workdir} is a file; give a folder")
    if (workdir / "config.json").exists():
        return _allowed_changes(workdir, read_config(workdir), cfg) if has_checkpoints(workdir) else []
    if workdir.exists() and any(workdir.iterdir()):
        raise UserError(f"--workdir {workdir} holds files but no run (no config.json); give a new or an empty folder")
    return []


def read_config(workdir: Path) -> ConfigDict:
    """The config of the run in a work folder; nothing is executed."""
    stored = workdir / "config.json"
    if not stored.is_file():
        raise UserError(f"{workdir} is no work folder: it has no config.json")
    try:
        return from_json(stored.read_text(encoding="utf-8"))
    except UserError as error:
        raise UserError(f"{stored}: {error}") from None


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is never seen half-written."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def figures_at(workdir: Path, step: int) -> dict[str, float]:
    """The `eval/` figures that metrics.jsonl has for a step, none if it was not evaluated."""
    path = workdir / "metrics.jsonl"
    found: dict[str, float] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["step"] == step:
                found |= {key: value for key, value in record.items() if key.startswith("eval/") and value is not None}
    return found


def has_checkpoints(workdir: Path) -> bool:
    """Whether there is anything to resume."""
    folder = workdir / "checkpoints"
    return folder.is_dir() and any(entry.name.isdigit() for entry in folder.iterdir())


def _allowed_changes(workdir: Path, old: ConfigDict, new: ConfigDict) -> list[Change]:
    changes = differences(old, new)
    refused = [change for change in changes if not MAY_CHANGE.fullmatch(change[0])]
    if refused:
        shown = "; ".join(f"{key}: {before} there, {now} here" for key, before, now in refused[:6])
        more = f"; and {len(refused) - 6} more" if len(refused) > 6 else ""
        raise UserError(
            f"{workdir} holds another experiment, which this config cannot resume ({shown}{more}); "
            "give another --workdir, or take its weights alone with --config.init_from"
        )
    return changes
