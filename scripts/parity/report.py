"""Renders the measurements as one table: a row per family, both directions next to each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from parity.cases import Case
from parity.compare import DIRECTIONS, EXACT, Measurement

_HEADER = (
    *("family", "classes", "cases", "read: hidden states", "outputs", "written: hidden states", "outputs", "names"),
    "agrees to",
)
_DIFFERS = "DIFFERS"


_NEOBERT = (
    "NeoBERT, for which `transformers` has no class, is not in the table: `tests/hf/test_neobert.py` compares it, to "
    "2e-05, with the published architecture written down in PyTorch and with the names and shapes of the released "
    "tensors, not with the released weights. So does `tests/hf/test_alibi_bert.py` with MosaicBERT, DNABERT-2 and Jina "
    "v2, without the list of released tensors, and `tests/hf/test_published.py` with folders of authors' code."
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
    exact = [each for each in group if each.quantity in EXACT]
    numbers = [each for each in group if each.quantity not in EXACT]
    names = ("same" if all(each.agrees for each in exact) else "differ") if exact else ""
    tolerance = max((each.tolerance for each in numbers), default=0.0)
    return (
        family,
        ", ".join(dict.fromkeys(each.model_class for each in group)),
        str(len({each.case for each in group})),
        *(cell for direction in DIRECTIONS for cell in _largest(numbers, direction)),
        names,
        f"{tolerance:.0e}" if all(each.agrees for each in group) else _DIFFERS,
    )


def _largest(numbers: Sequence[Measurement], direction: str) -> Iterator[str]:
    """Yields the largest difference of hidden states and of outputs."""
    # Quantities of a further call have its name as prefix: "memory: hidden_states[2]".
    for of_layers in (True, False):
        differences = [
            each.max_abs_diff
            for each in numbers
            if each.direction == direction and ("hidden_states[" in each.quantity) == of_layers
        ]
        yield f"{max(differences):.1e}" if differences else ""


def render(measurements: Sequence[Measurement], cases: Sequence[Case], versions: Mapping[str, str]) -> str:
    """Returns the report in Markdown.

    Args:
        measurements: measurements of all cases.
        cases: listed at the end.
        versions: versions of the compared libraries.
    """
    rows = table_rows(measurements)
    classes = _grouped(measurements, "family", "model_class").values()
    agreeing = sum(all(each.agrees for each in group) for group in classes)
    misses = [each for each in measurements if not each.agrees]
    heading = ", ".join(f"{name} {version}" for name, version in versions.items())
    parts = [
        "# The same numbers as `transformers`",
        f"Made by `scripts/parity_table.py` with {heading}.",
        "Random models of unusual sizes in float32, every parameter drawn at random, padded and unpadded rows. "
        "*Read*: `transformers` saves a folder, `load_pretrained` reads it. *Written*: "
        "`save_pretrained` writes a folder, `transformers` loads it without a missing, unexpected or misshapen tensor "
        "and saves it again under the same names. The largest absolute difference is shown, of every hidden state and "
        "of the outputs (logits, pooled vectors), over all classes and cases of a family.",
        _NEOBERT,
        _table([_HEADER, *rows]),
        f"{agreeing} of {len(classes)} classes agree; {len(measurements)} quantities were compared.",
    ]
    if misses:
        parts += ["## What does not agree", "\n".join(f"- {each.family}: {each}" for each in misses)]
    names: dict[str, list[str]] = {}
    for case in cases:
        names.setdefault(case.family, []).append(case.name)
    parts += ["## The cases", "\n".join(f"- {family}: {'; '.join(each)}" for family, each in names.items())]
    return "\n\n".join(parts) + "\n"


def _table(cells: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|---" * len(cells[0]) + "|", *lines[1:]])
