"""Runs next to each other, in a table and on a page of charts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from bertjax.commands.arguments import Flag, Folder, Out, as_list
from bertjax.commands.signatures import command
from bertjax.errors import UserError
from bertjax.io.output import Summary, require_output
from bertjax.io.staging import local_copy, output_path
from bertjax.report.comparability import read_compared_run, unique_names
from bertjax.report.compare import compare as compare_runs
from bertjax.report.run_record import Record, RunRecord, read_run
from bertjax.report.training_callbacks import stored_facts, verify


@command
def compare(
    runs: Annotated[Sequence[Folder], Flag("runs", type=Path, metavar="WORKDIR", nargs="+")],
    *,
    out: Out = None,
) -> Summary:
    """Compare runs in a table and a page of charts.

    Args:
        runs: work directories of runs; other directories are skipped
        out: an .html file with charts

    Returns:
        The table.

    Raises:
        UserError: no folder is a work directory, or one was changed since its run.

    Example:
        bertjax compare runs/* --out compare.html
    """
    if out is not None:
        require_output(out)
    folders = [local_copy(each) for each in as_list("runs", runs)]
    workdirs = [folder for folder in folders if (folder / "config.json").is_file()]
    for workdir in workdirs:
        verify(workdir)
    lines = [f"skipping {each}: it has no config.json" for each in folders if each not in workdirs and each.is_dir()]
    if not workdirs:
        raise UserError(f"none of {', '.join(map(str, folders))} is a work directory: none has a config.json")
    compared = [
        read_compared_run(workdir, name, _record_with_facts(workdir))
        for workdir, name in zip(workdirs, unique_names(workdirs), strict=True)
    ]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if out is None:
        return Summary("\n".join([*lines, compare_runs(compared, None, width)]))
    with output_path(Path(out).expanduser()) as local:
        lines.append(compare_runs(compared, local, width))
    return Summary("\n".join([*lines, f"charts: {out}"]))


def _record_with_facts(workdir: Path) -> RunRecord:
    """Returns the record of a run, completed with the cost of its step; writes nothing."""
    record = read_run(workdir)
    if record.facts:
        return record
    facts = stored_facts(workdir)
    completed: list[Record] = [] if facts is None else [{"step": 0, "kind": "run", **facts}]
    return record._replace(probes=[*completed, *record.probes])
