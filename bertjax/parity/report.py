"""Renders the measurements as one table: family x class x direction."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from bertjax.parity.cases import Case
from bertjax.parity.compare import EXACT, Measurement

_HEADER = ("family", "class", "direction", "cases", "hidden states", "outputs", "names", "tolerance", "verdict")


@dataclasses.dataclass(frozen=True)
class TableRow:
    """The worst of all cases of a class in a direction.

    Args:
        family, model_class, direction, tolerance: as of `Measurement`.
        cases: their number.
        hidden: largest absolute difference of a hidden state; None = none was compared.
        outputs: largest difference of logits and pooled vectors.
        names: True if tensors and config.json come back as written; None = not tested in this direction.
        agrees: all quantities agree.
    """

    family: str
    model_class: str
    direction: str
    cases: int
    hidden: float | None
    outputs: float | None
    names: bool | None
    tolerance: float
    agrees: bool


_NEOBERT = (
    "NeoBERT, for which `transformers` has no class, is not in the table: `tests/hf/test_neobert.py` compares it, to "
    "2e-05, with the published architecture written down in PyTorch and with the names and shapes of the released "
    "tensors, not with the released weights."
)


def table_rows(measurements: Iterable[Measurement]) -> list[TableRow]:
    """Groups measurements into the rows of the table, in order of first occurrence."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for each in measurements:
        groups.setdefault((each.family, each.model_class, each.direction), []).append(each)
    return [_row(*key, group) for key, group in groups.items()]


def _row(family: str, model_class: str, direction: str, group: Sequence[Measurement]) -> TableRow:
    exact = [each for each in group if each.quantity in EXACT]
    numbers = [each for each in group if each.quantity not in EXACT]
    # Quantities of a further call have its name as prefix: "memory: hidden_states[2]".
    hidden = [each.max_abs_diff for each in numbers if "hidden_states[" in each.quantity]
    outputs = [each.max_abs_diff for each in numbers if "hidden_states[" not in each.quantity]
    return TableRow(
        family,
        model_class,
        direction,
        len({each.case for each in group}),
        max(hidden, default=None),
        max(outputs, default=None),
        all(each.agrees for each in exact) if exact else None,
        max((each.tolerance for each in numbers), default=0.0),
        all(each.agrees for each in group),
    )


def render(measurements: Sequence[Measurement], cases: Sequence[Case], versions: Mapping[str, str]) -> str:
    """Returns the report in Markdown, its table aligned to be readable as plain text.

    Args:
        measurements: measurements of all cases.
        cases: listed at the end.
        versions: versions of the compared libraries.
    """
    lines = table_rows(measurements)
    misses = [each for each in measurements if not each.agrees]
    heading = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = [
        "# The same numbers as `transformers`",
        f"Made by `bertjax parity` with {heading}.",
        "Random models of unusual sizes in float32, every parameter drawn at random, padded and unpadded rows. "
        "*theirs -> ours*: `transformers` saves a folder, `load_pretrained` reads it. *ours -> theirs*: "
        "`save_pretrained` writes a folder, `transformers` loads it without a missing, unexpected or misshapen tensor "
        "and saves it again under the same names. The largest absolute difference is shown, of every hidden state and "
        "of the class's outputs (logits, pooled vectors), over all cases of the family.",
        _NEOBERT,
        _aligned([_HEADER, *map(_cells, lines)]),
        f"{sum(row.agrees for row in lines)} of {len(lines)} agree; {len(measurements)} quantities were compared.",
    ]
    if misses:
        parts += ["## What does not agree", "\n".join(f"- {each.family}: {each}" for each in misses)]
    parts += ["## The cases", "\n".join(f"- {case.family}: {case.name}" for case in cases)]
    return "\n\n".join(parts) + "\n"


def _cells(row: TableRow) -> tuple[str, ...]:
    names = {None: "", True: "same", False: "differ"}[row.names]
    verdict = "agrees" if row.agrees else "DIFFERS"
    numbers = (_number(row.hidden), _number(row.outputs), names, f"{row.tolerance:.0e}")
    return (row.family, row.model_class, row.direction, str(row.cases), *numbers, verdict)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _aligned(table: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    lines = ["| " + " | ".join(map(str.ljust, cells, widths)) + " |" for cells in table]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
