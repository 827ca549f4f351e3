"""Held-out text where `data.eval_fraction` holds out no document: one of several, or the end of a single one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from bertjax.config.sources import Source
from bertjax.data.sentence_splitter import split_sentences
from bertjax.data.sources import held_out_number
from bertjax.data.tokenizer_from_config import LogFunction, filtered_documents

if TYPE_CHECKING:
    from bertjax.data.prepare import PreparedCorpus

TAIL_SHARE = 0.1
"""Share of the sentences of a document that is held out at the end."""
HEAD, TAIL = f"all but the last {TAIL_SHARE:.0%} of the sentences", f"the last {TAIL_SHARE:.0%} of the sentences"


def hold_out_little(
    cfg: ConfigDict,
    sources: Mapping[str, Source],
    corpora: dict[str, PreparedCorpus],
    prepare: Callable[..., PreparedCorpus],
    say: LogFunction,
) -> dict[str, PreparedCorpus]:
    """Holds out a document of the source with most of them, or the end of its only one, and replaces its corpus.

    The choice is a function of the text, so that every start of a run makes the same.

    Args:
        cfg: Config of the run.
        sources: Training sources by name.
        corpora: Their corpora, none of which has held-out text.
        prepare: Prepares the corpus of (source, held-out fraction, `HEAD` or `TAIL` of its documents).
        say: Prints a line.

    Returns:
        Corpora of held-out text; none where those of training hold it, or where there is too little text.
    """
    splits = {name: corpus.splits["train"] for name, corpus in corpora.items()}
    name = max(splits, key=lambda each: (splits[each].documents, splits[each].tokens))
    source, none = sources[name], f"data.eval_fraction={cfg.data.eval_fraction} holds out no document"
    note = "a tokenizer that is trained on this text has read it"
    fraction = min_fraction(filtered_documents(source, cfg))
    if fraction is not None:
        say(f"{none}: one of {source.text} is held out all the same ({note})")
        corpora[name] = prepare(source, fraction)
    elif any(cut_documents(filtered_documents(source, cfg), TAIL)):
        say(f"{none}: {TAIL} of {source.text} are held out ({note})")
        corpora[name] = prepare(source, 0.0, HEAD)
        return {name: prepare(source, 1.0, TAIL)}
    return {}


def min_fraction(documents: Iterable[str]) -> float | None:
    """Returns the `eval_fraction` that holds out exactly one of the documents; None where all are equal, or none is."""
    first = second = math.inf
    for number in map(held_out_number, documents):
        if number < first:
            first, second = number, first
        elif first < number < second:
            second = number
    return None if math.isinf(second) else math.nextafter(first / 2**64, 1)


def cut_documents(documents: Iterable[str], part: str) -> Iterator[str]:
    """Yields `HEAD` or `TAIL` of every document; a document of one sentence is cut between words."""
    for document in documents:
        units, joint = split_sentences(document), "\n"
        if len(units) < 2:
            units, joint = document.split(), " "
        held_out = min(max(1, round(TAIL_SHARE * len(units))), len(units) - 1)
        cut = len(units) - held_out
        yield joint.join(units[:cut] if part == HEAD else units[cut:])
