"""The work directory of a run: its config, and whether another config may resume it. Needs no jax."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertjax.checkpoint.manifest import DamagedCheckpointError, read_manifest, steps_in
from bertjax.config import inputs
from bertjax.config.defaults import base_config
from bertjax.config.fields import PRESET, Setting, settings_of
from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import declared, differences, flatten, from_json, to_json
from bertjax.data import from_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError, comma_list, named
from bertjax.io import atomic
from bertjax.io.jsonl import read_log
from bertjax.io.run_lock import LOCK, RunLock
from bertjax.io.staging import StoredFolder, display_path, local_copy, stored_folder
from bertjax.runtime.process_group import SINGLE_PROCESS, ProcessGroup

_UNFINISHED = ".config.json.*.tmp"
"""File of a run that was killed while it wrote its config.json."""

LOCATION_KEYS = {"data.sources", "data.eval_sources", "data.tokenizer"}
"""Keys that name files; checkpoints hold digests of what is read there."""

ChangedKey = tuple[str, Any, Any]


@contextlib.contextmanager
def hold_workdir(workdir: Path, processes: ProcessGroup = SINGLE_PROCESS) -> Iterator[None]:
    """Makes the work directory and locks it against other runs; the processes of this run hold the lock together.

    A directory that it made is removed again if it is empty at the end, or if a `UserError` ended the run before it
    had any result.

    Raises:
        DirectoryInUseError: another run, or a process that is left of it, uses the directory.
        UserError: the directory cannot be written, or a process sees another one.
    """
    lock = RunLock(workdir / LOCK)
    made: list[Path] = []
    stored = stored_folder(workdir)

    def acquire() -> str:
        made.extend(folder for folder in (workdir, *workdir.parents) if not folder.exists())
        workdir.mkdir(parents=True, exist_ok=True)
        line = lock.acquire()
        for folder in (workdir, *(path for path in workdir.iterdir() if path.is_dir() and not path.is_symlink())):
            atomic.sweep(folder)
        return line

    try:
        try:
            first = processes.run_on_first("the lock on the work directory", acquire)
            if processes.index and stored is None:
                lock.join(first)
            processes.require_same("locks", dict, "")  # none goes on, and maybe ends, before all hold it
        except OSError as error:
            raise UserError(f"{named('workdir')} {workdir} cannot be written: {error.strerror or error}") from error
        with contextlib.nullcontext() if stored is None else _hold_store(stored, processes):
            if stored is not None and processes.index == 0 and not _entries(workdir):
                made.append(workdir)
            try:
                yield
            except UserError:
                _discard_empty_run(workdir, made)
                raise
    finally:
        lock.release()
        with contextlib.suppress(OSError):  # it holds a run now
            for folder in made:
                folder.rmdir()


@contextlib.contextmanager
def _hold_store(stored: StoredFolder, processes: ProcessGroup) -> Iterator[None]:
    """Holds the lease of a work directory in a store on the first process; the others read it first."""
    with stored.hold() if processes.index == 0 else contextlib.nullcontext():
        processes.require_same("leases", dict, "")
        if processes.index:
            stored.pull()
        processes.require_same("copies", dict, "")  # processes of one host have one copy, in which the first one writes
        yield


def _discard_empty_run(workdir: Path, made: list[Path]) -> None:
    """Empties a directory that this run made, unless there is something of worth in it."""
    if workdir in made and not _has_results(workdir):
        for entry in _entries(workdir):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _entries(workdir: Path) -> list[Path]:
    """Returns files and folders of a work directory, but for the lock of its run."""
    return [entry for entry in workdir.iterdir() if not entry.name.startswith(LOCK)]


def _has_results(workdir: Path) -> bool:
    log = workdir / "metrics.jsonl"
    return has_checkpoints(workdir) or (workdir / "anomalies").exists() or (log.exists() and log.stat().st_size > 0)


def write_config(workdir: Path, cfg: ConfigDict) -> None:
    """Writes config.json, which makes a directory the work directory of this run."""
    workdir.mkdir(parents=True, exist_ok=True)
    atomic.write_text(workdir / "config.json", to_json(cfg))


def check_start(cfg: ConfigDict, workdir: Path) -> None:
    """Raises `UserError` for folders and missing packages that would stop a run after its text is read."""
    atomic.require_writable(named("workdir"), workdir)
    from_config.require_cache_dir(cfg)
    has_wandb = sys.modules.get("wandb") or importlib.util.find_spec("wandb")
    if cfg.logging.wandb_project is not None and not has_wandb:
        raise UserError("logging.wandb_project is set but wandb is missing; pip install 'bertjax[wandb]'")


def changed_keys(workdir: Path, cfg: ConfigDict) -> list[ChangedKey]:
    """Returns the keys that changed since the checkpoints of `workdir`, as (key, before, now); changes nothing.

    Raises:
        UserError: the directory holds another run, or files that belong to no run.
    """
    if workdir.exists() and not workdir.is_dir():
        raise UserError(f"{named('workdir')} {workdir} is a file; give a directory")
    if (workdir / "config.json").exists():
        return _allowed_changes(workdir, read_config(workdir), cfg) if has_checkpoints(workdir) else []
    if workdir.exists() and not all(entry.match(_UNFINISHED) for entry in _entries(workdir)):
        raise UserError(
            f"{named('workdir')} {workdir} holds files but no run (no config.json); give a new or an empty directory"
        )
    return []


def read_config(workdir: Path) -> ConfigDict:
    """Returns the config of a run; executes nothing.

    Raises:
        UserError: config.json is missing or broken.
    """
    stored = workdir / "config.json"
    if not stored.is_file():
        raise UserError(f"{display_path(workdir)} is not a work directory: it has no config.json")
    try:
        text = stored.read_text(encoding="utf-8")
        return from_json(text)
    except UnicodeDecodeError as error:
        raise UserError(f"{stored}: invalid UTF-8 at byte {error.start}; restore the file of this run") from None
    except UserError as error:
        if '"model_type"' in text:
            raise UserError(
                f"{display_path(workdir)} is a model of transformers, not the work directory of a run; commands that "
                "read any model take it as --model"
            ) from None
        raise UserError(f"{stored}: {error}") from None


def read_settings(workdir: Path) -> tuple[ConfigDict, Tokenizer]:
    """Returns config and tokenizer of a run, compared with its newest checkpoint, if it has one; executes nothing.

    Raises:
        UserError: a file is missing or broken, or is not the one that the run was trained with.
    """
    cfg, tokenizer = read_config(workdir), load_tokenizer(workdir / "tokenizer")
    for step, meta in _newest_meta(workdir):
        require_same_run(workdir, step, meta, cfg)
        if meta.get("data", {}).get("tokenizer", tokenizer.digest) != tokenizer.digest:
            raise UserError(
                f"{workdir / 'tokenizer'} is not the tokenizer of this run, by its checkpoint of step {step}; restore "
                "the files from a copy"
            )
    return cfg, tokenizer


def _newest_meta(workdir: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Returns step and meta of the newest checkpoint with a valid manifest; empty if there is none."""
    for step in reversed(checkpoint_steps(workdir)):
        with contextlib.suppress(DamagedCheckpointError):
            return [(step, read_manifest(workdir / "checkpoints" / str(step))["meta"])]
    return []


def metrics_at(workdir: Path, step: int) -> dict[str, float]:
    """Returns the `eval/` and `test/` metrics of a step from metrics.jsonl; unfinished lines are skipped."""
    path = workdir / "metrics.jsonl"
    records = [record for record in read_log(path) if record["step"] == step]
    return {
        key: value
        for each in records
        for key, value in each.items()
        if key.startswith(("eval/", "test/")) and value is not None
    }


def has_checkpoints(workdir: Path) -> bool:
    """Returns whether there is a checkpoint to resume from."""
    return bool(checkpoint_steps(workdir))


def checkpoint_steps(workdir: Path) -> list[int]:
    """Returns the steps of all checkpoints, damaged ones included, in ascending order."""
    return steps_in(workdir / "checkpoints")


def parse_checkpoint(value: str) -> tuple[Path, int]:
    """Returns work directory and step of a value of `resume_from`; raises `UserError` if it is not RUN@STEP."""
    run, _, step = value.rpartition("@")
    if not (run and step.isdecimal()):
        workdir = local_copy(value)
        known = f"; {value} has the steps {comma_list(checkpoint_steps(workdir))}" * workdir.is_dir()
        raise UserError(f"resume_from={value} is not RUN@STEP, a work directory and a step{known}")
    return local_copy(run), int(step)


def require_same_data(meta: Mapping[str, Any], digests: Mapping[str, str], advice: str) -> None:
    """Checks that data are those of a checkpoint.

    Args:
        meta: meta of the checkpoint.
        digests: digests of the data; others of the checkpoint are not compared.
        advice: what the user can do about a difference.

    Raises:
        UserError: a digest differs; names the data.
    """
    saved = meta["data"]
    changed = sorted(name for name, digest in digests.items() if saved.get(name) != digest)
    if changed:
        raise UserError(f"the data of this run changed since its checkpoint ({', '.join(changed)}); {advice}")


def require_same_run(workdir: Path, step: int, meta: Mapping[str, Any], cfg: ConfigDict) -> None:
    """Checks that a checkpoint belongs to the run of a config; it may have been copied into the work directory.

    A key that was added after the checkpoint counts with its default.

    Args:
        workdir: the work directory, for messages.
        step: step of the checkpoint.
        meta: meta of the checkpoint.
        cfg: config of the run.

    Raises:
        UserError: a key differs that may not change on resume.
    """
    defaults = flatten(base_config())
    saved, now = meta.get("config", {}), flatten(cfg)
    before = {key: saved.get(key, defaults.get(key)) for key in now if key not in LOCATION_KEYS}
    changes = [(key, value, now[key]) for key, value in before.items()]
    refused = _refused(_real_changes(changes, before, now), cfg, declared(cfg))
    if saved and refused:
        raise UserError(
            f"the checkpoint of step {step} in {workdir} belongs to another run ({_describe(refused)}); remove it, "
            f"or give another {named('workdir')}"
        )


def _refused(changes: list[ChangedKey], cfg: ConfigDict, known: Mapping[str, Setting]) -> list[ChangedKey]:
    """Returns the changes that would change batches: shares of sources with limited epochs follow the length."""

    def is_fixed(key: str) -> bool:
        return not known[key].resume or (key == "train.num_steps" and inputs.limits_epochs(cfg))

    return [change for change in changes if is_fixed(change[0])]


def _real_changes(changes: list[ChangedKey], before: Mapping[str, Any], now: Mapping[str, Any]) -> list[ChangedKey]:
    """Returns the changes that are more than another spelling of a network's default.

    A run whose network comes from a model (`preset=none`) stores every value of it; a key that is newer than the run is
    left to the preset there, which means the default.
    """

    def meant(key: str, value: Any, values: Mapping[str, Any]) -> Any:
        group, _, name = key.rpartition(".")
        is_default = isinstance(value, str) and value == PRESET and values.get(f"{group}.preset") == "none"
        return settings_of(EncoderConfig)[name].default if is_default else value

    return [change for change in changes if meant(*change[:2], before) != meant(change[0], change[2], now)]


def _describe(changes: list[ChangedKey]) -> str:
    return comma_list((f"{key}: {before} there, {now} here" for key, before, now in changes), 6)


def _allowed_changes(workdir: Path, old: ConfigDict, new: ConfigDict) -> list[ChangedKey]:
    changes = _real_changes(differences(old, new), flatten(old), flatten(new))
    known = {**declared(old), **declared(new)}
    refused = _refused(changes, new, known)
    if refused:
        raise UserError(
            f"{workdir} holds another experiment, which this config cannot resume ({_describe(refused)}); "
            f"give another {named('workdir')}, or take its weights alone with {named('config.init_from')}"
        )
    return changes
