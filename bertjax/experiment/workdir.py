"""The work folder: what it holds, whose it is, and whether a config may go on with it. Needs no jax."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.defaults import base_config
from bertjax.config.overrides import declared, differences, flatten, from_json, to_json
from bertjax.errors import UserError, comma_list
from bertjax.io import atomic
from bertjax.io.jsonl import read_log

_CLAIMING = ".config.json.*.tmp"
"""All that is there of a run that was killed while it wrote its config.json."""

# Where text lies: checkpoints hold the digests of what was read there.
LOCATION_KEYS = {"data.sources", "data.eval_sources", "data.tokenizer"}

ChangedKey = tuple[str, Any, Any]


def write_config(workdir: Path, cfg: ConfigDict) -> None:
    """Makes the folder this run's own: from here on it has a config.json."""
    workdir.mkdir(parents=True, exist_ok=True)
    for unfinished in workdir.glob(_CLAIMING):
        unfinished.unlink()
    atomic.write_text(workdir / "config.json", to_json(cfg))


def changed_keys(workdir: Path, cfg: ConfigDict) -> list[ChangedKey]:
    """The keys that changed since the folder's checkpoints were made; touches nothing.

    Raises `UserError` when the folder holds another experiment or foreign files.
    """
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f"--workdir {workdir} is a file; give a folder")
    if (workdir / "config.json").exists():
        return _allowed_changes(workdir, read_config(workdir), cfg) if has_checkpoints(workdir) else []
    if workdir.exists() and any(not entry.match(_CLAIMING) for entry in workdir.iterdir()):
        raise UserError(f"--workdir {workdir} holds files but no run (no config.json); give a new or an empty folder")
    return []


def read_config(workdir: Path) -> ConfigDict:
    """The config of the run in a work folder; nothing is executed."""
    stored = workdir / "config.json"
    if not stored.is_file():
        raise UserError(f"{workdir} is no work folder: it has no config.json")
    try:
        return from_json(stored.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{stored}: invalid UTF-8 at byte {error.start}; bring back the file of this run") from None
    except UserError as error:
        raise UserError(f"{stored}: {error}") from None


def metrics_at(workdir: Path, step: int) -> dict[str, float]:
    """The `eval/` figures that metrics.jsonl has for a step, none if it was not evaluated.

    A line that a killed process did not finish is passed over.
    """
    path = workdir / "metrics.jsonl"
    records = [record for record in read_log(path) if record["step"] == step]
    return {
        key: value for each in records for key, value in each.items() if key.startswith("eval/") and value is not None
    }


def has_checkpoints(workdir: Path) -> bool:
    """Whether there is anything to resume."""
    folder = workdir / "checkpoints"
    return folder.is_dir() and any(entry.name.isdigit() for entry in folder.iterdir())


def require_same_run(workdir: Path, step: int, meta: Mapping[str, Any], cfg: ConfigDict) -> None:
    """Raises `UserError` when the checkpoint of `step` was made by another experiment than `cfg`.

    config.json speaks for a whole folder; a checkpoint that was copied into it is known by what it says of itself. A
    key that is younger than the checkpoint had its default.
    """
    defaults = flatten(base_config())
    saved, now = meta.get("config", {}), flatten(cfg)
    changes = [(key, saved.get(key, defaults[key]), value) for key, value in now.items() if key not in LOCATION_KEYS]
    refused = [change for change in changes if change[1] != change[2] and not declared()[change[0]].resume]
    if saved and refused:
        raise UserError(
            f"the checkpoint of step {step} in {workdir} belongs to another run ({_describe(refused)}); take it away, "
            "or give another --workdir"
        )


def _describe(changes: list[ChangedKey]) -> str:
    return comma_list((f"{key}: {before} there, {now} here" for key, before, now in changes), 6)


def _allowed_changes(workdir: Path, old: ConfigDict, new: ConfigDict) -> list[ChangedKey]:
    changes = differences(old, new)
    refused = [change for change in changes if not declared()[change[0]].resume]
    if refused:
        raise UserError(
            f"{workdir} holds another experiment, which this config cannot resume ({_describe(refused)}); "
            "give another --workdir, or take its weights alone with --config.init_from"
        )
    return changes
