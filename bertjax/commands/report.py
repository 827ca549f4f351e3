"""The report of a run, also of one that was trained without a report."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

from bertjax.commands.arguments import Flag, Folder
from bertjax.commands.signatures import command
from bertjax.experiment.load import load_run
from bertjax.experiment.workdir import hold_workdir
from bertjax.io.output import Summary
from bertjax.io.run_lock import DirectoryInUseError
from bertjax.io.staging import local_copy
from bertjax.report.render import render
from bertjax.report.run_record import ProbeLog, read_run
from bertjax.report.training_callbacks import probes, run_facts, stored_facts, verify


@command
def report(
    workdir: Annotated[Folder, Flag("workdir", type=Path, metavar="WORKDIR")],
    *,
    with_probes: bool = False,
) -> Summary:
    """Rewrite the report.html of a run.

    Args:
        workdir: work directory of a run
        with_probes: probe the newest checkpoint first

    Returns:
        The path of the page in words.

    Raises:
        UserError: the directory holds no run, or was changed since.

    Example:
        bertjax report runs/quickstart
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    folder = local_copy(workdir)
    verify(folder)
    record = read_run(folder)
    if with_probes:
        _probe(folder)
    elif not record.facts and (facts := stored_facts(folder)) is not None:
        with contextlib.suppress(DirectoryInUseError), hold_workdir(folder):  # a run in progress writes its own
            ProbeLog(folder, record.step).describe(facts)
    path = render(folder)
    size = path.stat().st_size / 1024
    return Summary(f"{path} ({size:.0f} KiB): step {record.step:,} of {record.num_steps or 0:,}")


def _probe(workdir: Path) -> None:
    """Writes the probes of the newest checkpoint into the probe log."""
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
