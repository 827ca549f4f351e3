"""Reports and comparisons of work directories, also for runs that were trained without a report."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.experiment.workdir import has_checkpoints, hold_workdir, read_config, read_settings
from bertjax.io.run_lock import DirectoryInUseError
from bertjax.report.comparability import read_compared_run, unique_names
from bertjax.report.compare import compare as compare_runs
from bertjax.report.probe_log import ProbeLog, Record
from bertjax.report.render import render
from bertjax.report.run_record import RunRecord, read_run


def report(workdir: Path, with_probes: bool = False) -> Path:
    """Rewrites `report.html` and prints its path.

    Args:
        workdir: work directory of a run.
        with_probes: probes the newest checkpoint first.

    Returns:
        The path of the page.
    """
    _verify(workdir)
    record = read_run(workdir)
    if with_probes:
        _probe(workdir)
    elif not record.facts and (facts := _facts(workdir)) is not None:
        with contextlib.suppress(DirectoryInUseError), hold_workdir(workdir):  # a run in progress writes its own
            ProbeLog(workdir, record.step).describe(facts)
    path = render(workdir)
    print(f"{path} ({path.stat().st_size / 1024:.0f} KiB): step {record.step:,} of {record.num_steps or 0:,}")
    return path


def _verify(workdir: Path) -> None:
    """Raises `UserError` if config or tokenizer are not those that the run was trained with."""
    try:
        read_config(workdir)
    except UserError:
        return  # not a run, as `read_run` reports, or one of another version, whose metrics can still be drawn
    if has_checkpoints(workdir):
        read_settings(workdir)


def _probe(workdir: Path) -> None:
    """Writes the probes of the newest checkpoint into the probe log."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from bertjax.experiment.load import load_run
    from bertjax.report.training_callbacks import probes, run_facts

    with hold_workdir(workdir):  # a run in progress probes by itself
        run, record = load_run(workdir), read_run(workdir)
        log = ProbeLog(workdir, record.step)
        # Only the run itself knew how full its batches were.
        stored = {name: record.facts[name] for name in ("phases", "rows") if name in record.facts}
        log.describe(run_facts(run.experiment, run.meta.get("tokens"), None) | stored)
        model_probes = probes(run.experiment, run.tokenizer, run.tokenizer.vocabulary().counts)
        probed = model_probes(run.step, run.params)
        probed += [] if any(kind == "neighbors" for kind, _ in probed) else model_probes.probe_internals(run.params)
        log.forget(run.step)
        for kind, fields in probed:
            log.write(run.step, kind, **fields)


def compare(folders: Sequence[Path], out: Path | None = None) -> None:
    """Prints a table of runs.

    Args:
        folders: work directories; other directories are skipped.
        out: page with charts to write.

    Raises:
        UserError: no folder is a work directory.
    """
    workdirs = [folder for folder in folders if (folder / "config.json").is_file()]
    for workdir in workdirs:
        _verify(workdir)
    for folder in folders:
        if folder not in workdirs and folder.is_dir():
            print(f"skipping {folder}: it has no config.json")
    if not workdirs:
        raise UserError(f"none of {', '.join(map(str, folders))} is a work directory: none has a config.json")
    runs = [
        read_compared_run(workdir, name, _record_with_facts(workdir))
        for workdir, name in zip(workdirs, unique_names(workdirs), strict=True)
    ]
    print(compare_runs(runs, out, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    if out is not None:
        print(f"charts: {out}")


def _record_with_facts(workdir: Path) -> RunRecord:
    """Returns the record of a run, completed with the cost of its step; writes nothing."""
    record = read_run(workdir)
    if record.facts:
        return record
    facts = _facts(workdir)
    completed: list[Record] = [] if facts is None else [{"step": 0, "kind": "run", **facts}]
    return record._replace(probes=[*completed, *record.probes])


def _facts(workdir: Path) -> dict[str, Any] | None:
    """Returns parameters and FLOPs of a run without a record of them; None if its work directory is incomplete."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from bertjax.experiment.load import stored_experiment
    from bertjax.report.training_callbacks import run_facts

    try:
        facts = run_facts(stored_experiment(workdir)[0], None, None)
    except UserError as error:
        print(f"{workdir}: the cost of a step is unknown ({error})")
        return None
    return {name: value for name, value in facts.items() if name not in ("devices", "jax")}
