"""Ids outside the tables of a model never reach it: the error names the document and the range (P26)."""

from __future__ import annotations

import re
import types
from pathlib import Path

import numpy as np
import pytest
from corpus_folders import update_digests
from prepare_lab import documents, prepare, tokenizer

from bertjax.data.corpus import Corpus, offsets, open_corpus
from bertjax.data.formats import PACKABLE, make_format
from bertjax.data.formats.base import example_ids
from bertjax.data.pipeline import MixtureSource, Pipeline, Prefetcher
from bertjax.data.prepare import PreparedCorpus
from bertjax.data.validate_ids import id_limits, require_ids_in_range
from bertjax.errors import UserError
from bertjax.types import Batch

V = 500
IDS = types.SimpleNamespace(pad_id=0, cls_id=1, sep_id=2)


def corpus_of(position: int | None = None, value: int = 0, dtype: type = np.int32) -> Corpus:
    """Returns forty documents of three sentences of seven tokens in three chunks; one id may be wrong."""
    ids = np.random.default_rng(0).integers(3, V, 40 * 21).astype(dtype)
    if position is not None:
        ids[position] = value
    chunks = np.split(ids, [21 * 9, 21 * 30])
    lengths = np.full(120, 7)
    return Corpus(chunks, lengths, offsets([3] * 40), np.zeros(0, np.int64), "toy", Path("cache/toy/train"))


def pipeline_of(corpus: Corpus, form: str = "block", **settings: object) -> Pipeline:
    options = {"seq_len": 24, "seed": 1, "special_ids": IDS, "dupe_factor": 1, "batch_size": 4} | settings
    return Pipeline(
        [MixtureSource("toys", make_format(form, corpus, **options), None, corpus)], batch_size=4, seed=0, vocab_size=V
    )


def an_epoch(pipeline: Pipeline) -> list[Batch]:
    return [pipeline.batch(cursor) for cursor in range(-(-sum(pipeline.sequences_per_epoch.values()) // 4))]


@pytest.mark.parametrize("value", [V, V + 1, -1, -100])
@pytest.mark.parametrize("form", [*PACKABLE, "stream", "segments"])
def test_an_id_outside_the_vocabulary_names_its_document(form: str, value: int) -> None:
    more = {"reuse_len": 8} if form == "segments" else {}
    with pytest.raises(UserError) as caught:
        for epoch in range(3):  # pairs skip some text
            an_epoch(pipeline_of(corpus_of(21 * 33 + 5, value), form, seed=epoch, **more))
    output = str(caught.value)
    assert f"source toys contains token id {value} (example " in output and "500 tokens, ids 0 to 499" in output
    assert f"token 6 of document 34 of {Path('cache/toy/train')}" in output and "prepare the corpus" in output


@pytest.mark.parametrize(("value", "stored"), [(V, V), (V + 1, V + 1), (-1, 65535), (-100, 65436)])
def test_packed_rows_and_narrow_ids_are_looked_at_too(value: int, stored: int) -> None:
    """The error names the example of the row that holds the id."""
    corpus = corpus_of(21 * 12, np.array(value).astype(np.uint16), np.uint16)
    pipeline = pipeline_of(corpus, "nsp_pairs", packing="best_fit", max_examples=4, seq_len=48, short_seq_prob=1.0)
    with pytest.raises(UserError, match=rf"token id {stored} \(example \d+\).*token 1 of document 13 of"):
        an_epoch(pipeline)


def begin_of(corpus: Corpus, example: int) -> int:
    """Returns the token at which an example begins, by a search over all of them."""
    (token,) = np.flatnonzero(example_ids(corpus, np.arange(corpus.num_tokens)) == example)
    return int(token)


def test_the_example_that_is_named_holds_it() -> None:
    position = 21 * 20 + 13
    corpus = corpus_of(position, V)
    with pytest.raises(UserError) as caught:
        an_epoch(pipeline_of(corpus, packing="best_fit", max_examples=3, seq_len=30))
    (example,) = re.findall(r"\(example (\d+)\)", str(caught.value))
    assert 0 <= position - begin_of(corpus, int(example)) < 21


@pytest.fixture(scope="module")
def batch() -> Batch:
    return pipeline_of(corpus_of(), "nsp_pairs", packing="best_fit", max_examples=4, seq_len=48).batch(0)


@pytest.mark.parametrize("value", [2, 3, -1, -100])
def test_a_label_outside_its_classes_names_the_document(batch: Batch, value: int) -> None:
    """-100, torch's "no label", would give a NaN here, and -1 the last class."""
    labels = batch["pair_labels"].copy()
    labels[2, 1] = value
    corpus = corpus_of()
    settings = (
        pipeline_of(corpus, "nsp_pairs", packing="best_fit", max_examples=4, seq_len=48).sources[0].format.settings
    )
    sources = [MixtureSource("toys", None, None, corpus)]  # type: ignore[arg-type]
    with pytest.raises(UserError) as caught:
        require_ids_in_range(batch | {"pair_labels": labels}, id_limits(settings, V), sources, np.zeros(4, int))
    example = int(batch["example_ids"][2, 1])
    document = begin_of(corpus, example) // 21 + 1
    expected = f"pair_labels contains {value} (example {example}), outside 0 to 1; it begins in document {document} of"
    assert expected in str(caught.value)


@pytest.mark.parametrize("field", ["segment_ids", "position_ids", "token_type_ids", "example_positions"])
@pytest.mark.parametrize("value", [1 << 20, -1])
def test_every_field_that_is_an_index_is_looked_at(batch: Batch, field: str, value: int) -> None:
    broken = batch[field].copy()
    broken[1, 1] = value
    settings = pipeline_of(corpus_of(), packing="best_fit", max_examples=4, seq_len=48).sources[0].format.settings
    sources = [MixtureSource("toys", None, None, None)]  # type: ignore[arg-type]
    require_ids_in_range(batch, id_limits(settings, V), sources, np.zeros(4, int))
    with pytest.raises(UserError, match=f"{field} contains {value} "):
        require_ids_in_range(batch | {field: broken}, id_limits(settings, V), sources, np.zeros(4, int))


@pytest.mark.parametrize("begin", [(0, 1), (2, 1), (1, 2, 1), (1, 0, 1)])
def test_examples_out_of_order_are_refused(batch: Batch, begin: tuple[int, ...]) -> None:
    """Kernels that know the examples by their offsets would compute something else without a message."""
    settings = pipeline_of(corpus_of(), packing="best_fit", max_examples=4, seq_len=48).sources[0].format.settings
    sources = [MixtureSource("toys", None, None, None)]  # type: ignore[arg-type]
    broken = batch["segment_ids"].copy()
    broken[1] = 0
    broken[1, : len(begin)] = begin
    with pytest.raises(UserError, match=r"source toys: segment_ids of a sequence must be .* each contiguous"):
        require_ids_in_range(batch | {"segment_ids": broken}, id_limits(settings, V), sources, np.zeros(4, int))


def test_every_integer_of_a_batch_has_a_limit_or_is_an_identity(batch: Batch) -> None:
    settings = pipeline_of(corpus_of()).sources[0].format.settings
    free = {"example_ids", "example_epochs", "example_draws"}
    assert {name for name, array in batch.items() if array.dtype.kind in "iu"} == {*id_limits(settings, V), *free}


@pytest.mark.parametrize("role", ["pad_id", "cls_id", "sep_id"])
@pytest.mark.parametrize("value", [V, V + 1])
def test_special_tokens_are_checked_before_anything_is_read(role: str, value: int) -> None:
    special = types.SimpleNamespace(**(vars(IDS) | {role: value}))
    with pytest.raises(UserError, match=rf"the tokenizer's {role} is {value}, but the vocabulary has only 500 tokens"):
        pipeline_of(corpus_of(), special_ids=special)


def test_the_token_after_a_document_is_checked_too() -> None:
    with pytest.raises(UserError, match="the tokenizer's end_id is 500"):
        pipeline_of(corpus_of(), "stream", end_id=V)


def flipped(folder: Path, value: int) -> int:
    """Sets one stored id of the training split to `value` in the file; returns its document."""
    corpus = open_corpus(folder)["train"].open()
    begin, end = corpus.document_tokens[7:9]
    old = corpus.read(np.array([begin]), np.array([end - begin]))[0].astype("<u2").tobytes()
    (arrow,) = (folder / "train").glob("*.arrow")
    whole = arrow.read_bytes()
    assert whole.count(old) == 1
    position = whole.index(old) + 4
    arrow.write_bytes(whole[:position] + np.array(value).astype("<u2").tobytes() + whole[position + 2 :])
    update_digests(folder)
    return 8


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedCorpus:
    return prepare(tmp_path, documents(80))


@pytest.mark.parametrize("excess", [0, 1, -1, -100])
def test_an_id_outside_the_vocabulary_in_a_prepared_corpus_is_named(prepared: PreparedCorpus, excess: int) -> None:
    """Names, sizes, boundaries and digests are right; the first batch with the id ends the run."""
    value = tokenizer().size + excess if excess >= 0 else excess
    number = flipped(prepared.folder, value)
    corpus = open_corpus(prepared.folder)["train"]
    form = make_format("block", corpus.open(), seq_len=32, seed=0, special_ids=tokenizer())
    pipeline = Pipeline([MixtureSource("toys", form, None, corpus)], batch_size=8, seed=0, vocab_size=tokenizer().size)
    with (
        Prefetcher(pipeline.batch, 0, 100) as ahead,
        pytest.raises(UserError, match=f"token 3 of document {number} of {prepared.folder}/train"),
    ):
        for _ in ahead:
            pass
