"""`bertjax report` and `bertjax compare`: pages of work folders, also of runs that were made before there were any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.errors import UserError
from bertjax.report.comparability import read_compared_run, unique_names
from bertjax.report.compare import compare as compare_runs
from bertjax.report.probe_log import ProbeLog, Record
from bertjax.report.render import render
from bertjax.report.run_record import RunRecord, read_run


def report(workdir: Path, probe: bool) -> Path:
    """Writes `report.html` anew and says where it lies; `probe` looks into the newest checkpoint first."""
    record = read_run(workdir)
    if probe:
        _look(workdir)
    elif not record.of_kind("run") and (facts := _facts(workdir)) is not None:
        ProbeLog(workdir, record.step).describe(facts)
    path = render(workdir)
    print(f"{path} ({path.stat().st_size / 1024:.0f} KiB): update {record.step:,} of {record.num_steps or 0:,}")
    return path


def _look(workdir: Path) -> None:
    """What the newest checkpoint fills in, looks at and takes for alike, into the journal."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from bertjax.experiment.load import load_run
    from bertjax.report.training_callbacks import probes, run_facts

    run = load_run(workdir)
    exp = run.experiment
    record = read_run(workdir)
    journal = ProbeLog(workdir, record.step)
    told = {name: own[name] for own in record.of_kind("run")[-1:] for name in ("phases", "rows") if name in own}
    journal.describe(
        run_facts(exp, run.meta.get("tokens"), None) | told
    )  # the run itself knew how full its batches are
    wanted = probes(exp, run.tokenizer, run.tokenizer.vocabulary().counts)
    found = wanted(run.step, run.params)
    found += [] if any(kind == "neighbors" for kind, _ in found) else wanted.probe_internals(run.params)
    journal.forget(run.step)
    for kind, fields in found:
        journal.write(run.step, kind, **fields)


def compare(folders: Sequence[Path], out: Path | None) -> None:
    """Prints the table of the runs and writes the page, if it is asked for. What is no work folder is passed over."""
    workdirs = [folder for folder in folders if (folder / "config.json").is_file()]
    for folder in folders:
        if folder not in workdirs and folder.is_dir():
            print(f"{folder} is passed over: it has no config.json")
    if not workdirs:
        raise UserError(f"none of {', '.join(map(str, folders))} is a work folder: none has a config.json")
    found = [
        read_compared_run(workdir, name, _known(workdir))
        for workdir, name in zip(workdirs, unique_names(workdirs), strict=True)
    ]
    print(compare_runs(found, out))
    if out is not None:
        print(out)


def _known(workdir: Path) -> RunRecord:
    """The record of a run; where it does not tell what a step costs, that is worked out, and nothing is written."""
    record = read_run(workdir)
    if record.of_kind("run"):
        return record
    facts = _facts(workdir)
    told: list[Record] = [] if facts is None else [{"step": 0, "kind": "run", **facts}]
    return record._replace(probes=[*told, *record.probes])


def _facts(workdir: Path) -> dict[str, Any] | None:
    """Parameters and FLOPs of a run that did not write them down; None where its folder does not suffice."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from bertjax.data.tokenizer_io import load_tokenizer
    from bertjax.experiment.load import stored_experiment
    from bertjax.report.training_callbacks import run_facts

    try:
        facts = run_facts(stored_experiment(workdir, load_tokenizer(workdir / "tokenizer")), None, None)
    except UserError as error:
        print(f"{workdir}: what a step costs is not known ({error})")
        return None
    return {name: value for name, value in facts.items() if name not in ("devices", "jax")}
