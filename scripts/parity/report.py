"""Renders the measurements as one table: a row per family, both directions next to each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from parity.cases import TOLERANCE
from parity.compare import DIRECTIONS, EXACT, Measurement

_HEADER = ("family", "classes", "cases", "read", "written")
_DIFFERS = "DIFFERS"


_WITHOUT_CLASS = (
    "`transformers` has no class for NeoBERT, MosaicBERT, DNABERT-2, Jina v2 and other folders with code of their own: "
    "`tests/hf/test_neobert.py`, `test_alibi_bert.py` and `test_published.py` compare them, to 2e-05, with the "
    "published architectures written down in PyTorch, NeoBERT also with the names and shapes of the released tensors. "
    "No released weights were compared."
)


def table_rows(measurements: Iterable[Measurement]) -> list[tuple[str, ...]]:
    """Returns the cells of the table: a row per family, in order of first occurrence."""
    return [_cells(family, group) for (family,), group in _grouped(measurements, "family").items()]


def _grouped(measurements: Iterable[Measurement], *fields: str) -> dict[tuple[str, ...], list[Measurement]]:
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for each in measurements:
        groups.setdefault(tuple(getattr(each, field) for field in fields), []).append(each)
    return groups


def _cells(family: str, group: Sequence[Measurement]) -> tuple[str, ...]:
    """Returns the classes, the number of cases and the worst of them; empty cells are about what is not compared."""
    numbers = [each for each in group if each.quantity not in EXACT]
    return (
        family if all(each.agrees for each in group) else f"{family}: {_DIFFERS}",
        _class_names([*dict.fromkeys(each.model_class for each in group)]),
        str(len({each.case for each in group})),
        *(_largest(numbers, direction) for direction in DIRECTIONS),
    )


def _class_names(names: Sequence[str]) -> str:
    """Returns names of classes, separated by commas, without the family: `MaskedLM` for `BertForMaskedLM`."""
    return ", ".join(re.sub(r"^.*?For(?=[A-Z])", "", name) for name in names)


def _largest(numbers: Sequence[Measurement], direction: str) -> str:
    """Returns the largest difference of hidden states and outputs."""
    differences = [each.max_abs_diff for each in numbers if each.direction == direction]
    return f"{max(differences):.1e}" if differences else ""


def render(measurements: Sequence[Measurement], versions: Mapping[str, str]) -> str:
    """Returns the report in Markdown.

    Args:
        measurements: measurements of all cases.
        versions: versions of the compared libraries.
    """
    rows = table_rows(measurements)
    classes = _grouped(measurements, "family", "model_class").values()
    wider = sorted({(each.family, each.tolerance) for each in measurements if each.tolerance > TOLERANCE})
    agreeing = sum(all(each.agrees for each in group) for group in classes)
    misses = [each for each in measurements if not each.agrees]
    heading = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = [
        "# The same numbers as `transformers`",
        f"Made by `scripts/parity_table.py` with {heading}.",
        "Random models of unusual sizes in float32, every parameter drawn at random (but MobileBERT's row of padding, "
        "which is zero), padded and unpadded rows; "
        "`scripts/parity/families` has the cases. *Read*: `transformers` saves a folder, `load_pretrained` reads it. "
        "*Written*: `save_pretrained` writes a folder, `transformers` loads it without a missing, unexpected or "
        "misshapen tensor and saves it again under the same names. The largest absolute difference is shown, of every "
        "hidden state and of the outputs (logits, pooled vectors), over all classes and cases of a family.",
        _WITHOUT_CLASS,
        _table([_HEADER, *rows]),
        f"{agreeing} of {len(classes)} classes agree to {TOLERANCE:.0e}"
        + "".join(f", {family} to {tolerance:.0e}" for family, tolerance in wider)
        + f"; {len(measurements)} quantities were compared.",
    ]
    if misses:
        parts += ["## What does not agree", "\n".join(f"- {each.family}: {each}" for each in misses)]
    return "\n\n".join(parts) + "\n"


def _table(cells: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|---" * len(cells[0]) + "|", *lines[1:]])
