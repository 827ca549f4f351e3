"""Keys of a config that name a model or tokenizer on the Hub: a run keeps the commits that it started from."""

from __future__ import annotations

from pathlib import Path

from ml_collections import ConfigDict

from bertjax.config.overrides import declared, flatten
from bertjax.experiment.workdir import read_config
from bertjax.io.hub import is_hub_name, parse_hub_name, pin
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup


def recall_commits(cfg: ConfigDict, workdir: Path) -> None:
    """Gives names in a config the commits that the run in `workdir` has, whatever their branches stand for now."""
    if not (workdir / "config.json").is_file():
        return
    stored = _hub_names(read_config(workdir))
    for key, name in _hub_names(cfg).items():
        now, before = parse_hub_name(name), parse_hub_name(stored.get(key, name))
        if now.repo == before.repo and not now.is_pinned:
            cfg.update_from_flattened_dict({key: stored.get(key, name)})


def pin_commits(cfg: ConfigDict, workdir: Path, processes: ProcessGroup = SINGLE_PROCESS) -> None:
    """Gives names in a config the commits that they stand for, the same on all processes; those of the run stay.

    Args:
        cfg: config of the run, which is changed.
        workdir: its work directory.
        processes: processes of the run, the first of which asks the Hub.

    Raises:
        UserError: a model is not on the Hub, or the Hub cannot be reached.
    """
    recall_commits(cfg, workdir)
    if names := _hub_names(cfg):
        pinned = processes.run_on_first(
            "the commits of models on the Hub", lambda: {key: pin(name) for key, name in names.items()}
        )
        cfg.update_from_flattened_dict(pinned)


def _hub_names(cfg: ConfigDict) -> dict[str, str]:
    known = declared(cfg)
    return {key: value for key, value in flatten(cfg).items() if known[key].path and is_hub_name(value)}
