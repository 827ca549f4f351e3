"""Renders the measurements as one table: family x class x direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from parity.cases import Case
from parity.compare import EXACT, Measurement

_HEADER = ("family", "class", "direction", "cases", "hidden states", "outputs", "names", "tolerance", "verdict")
_AGREES = "agrees"


_NEOBERT = (
    "NeoBERT, for which `transformers` has no class, is not in the table: `tests/hf/test_neobert.py` compares it, to "
    "2e-05, with the published architecture written down in PyTorch and with the names and shapes of the released "
    "tensors, not with the released weights."
)


def table_rows(measurements: Iterable[Measurement]) -> list[tuple[str, ...]]:
    """Returns the cells of the table: a row per class and direction, in order of first occurrence."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for each in measurements:
        groups.setdefault((each.family, each.model_class, each.direction), []).append(each)
    return [(*key, *_cells(group)) for key, group in groups.items()]


def _cells(group: Sequence[Measurement]) -> tuple[str, ...]:
    """Returns the number of cases and the worst of them; empty cells are about what is not compared."""
    exact = [each for each in group if each.quantity in EXACT]
    numbers = [each for each in group if each.quantity not in EXACT]
    # Quantities of a further call have its name as prefix: "memory: hidden_states[2]".
    hidden = [each.max_abs_diff for each in numbers if "hidden_states[" in each.quantity]
    outputs = [each.max_abs_diff for each in numbers if "hidden_states[" not in each.quantity]
    names = ("same" if all(each.agrees for each in exact) else "differ") if exact else ""
    return (
        str(len({each.case for each in group})),
        *(f"{max(differences):.1e}" if differences else "" for differences in (hidden, outputs)),
        names,
        f"{max((each.tolerance for each in numbers), default=0.0):.0e}",
        _AGREES if all(each.agrees for each in group) else "DIFFERS",
    )


def render(measurements: Sequence[Measurement], cases: Sequence[Case], versions: Mapping[str, str]) -> str:
    """Returns the report in Markdown, its table aligned to be readable as plain text.

    Args:
        measurements: measurements of all cases.
        cases: listed at the end.
        versions: versions of the compared libraries.
    """
    rows = table_rows(measurements)
    agreeing = sum(row[-1] == _AGREES for row in rows)
    misses = [each for each in measurements if not each.agrees]
    heading = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = [
        "# The same numbers as `transformers`",
        f"Made by `scripts/parity_table.py` with {heading}.",
        "Random models of unusual sizes in float32, every parameter drawn at random, padded and unpadded rows. "
        "*theirs -> ours*: `transformers` saves a folder, `load_pretrained` reads it. *ours -> theirs*: "
        "`save_pretrained` writes a folder, `transformers` loads it without a missing, unexpected or misshapen tensor "
        "and saves it again under the same names. The largest absolute difference is shown, of every hidden state and "
        "of the class's outputs (logits, pooled vectors), over all cases of the family.",
        _NEOBERT,
        _aligned([_HEADER, *rows]),
        f"{agreeing} of {len(rows)} agree; {len(measurements)} quantities were compared.",
    ]
    if misses:
        parts += ["## What does not agree", "\n".join(f"- {each.family}: {each}" for each in misses)]
    parts += ["## The cases", "\n".join(f"- {case.family}: {case.name}" for case in cases)]
    return "\n\n".join(parts) + "\n"


def _aligned(table: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    lines = ["| " + " | ".join(map(str.ljust, cells, widths)) + " |" for cells in table]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
