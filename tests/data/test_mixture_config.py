"""Mixtures of a config: shares, epochs, tokens and phases, as functions of the cursor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.experiment.loop_parts import CorpusBatches, batches
from bertjax.experiment.workdir import changed_keys, write_config

SIZES = {"a": 40, "b": 400, "c": 1600}
STEPS, BATCH = 100, 16
BOUNDS = (0, 40, 80, 90), (40, 80, 90, 100)  # of four phases

Make = Callable[..., CorpusBatches]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one sequence of 16 tokens each, in c of 4; the words of a document are its source and number."""
    folder = tmp_path_factory.mktemp("mixture")
    for name, documents in SIZES.items():
        words = 2 if name == "c" else 14
        (folder / f"{name}.txt").write_text("".join(f"{name} w{i} " * (words // 2) + "\n" for i in range(documents)))
    return folder


@pytest.fixture(scope="module")
def make(folder: Path) -> Make:
    def made(*suffixes: str, **values: Any) -> CorpusBatches:
        suffixes = suffixes or ("", "", "")
        overrides = {
            "data.sources": tuple(f"lines:{folder}/{name}.txt{end}" for name, end in zip(SIZES, suffixes, strict=True)),
            "data.eval_sources": (f"lines:{folder}/a.txt",),
            "data.tokenizer": "wordlevel",
            "data.vocab_size": 2000,
            "data.example_format": "doc_sentences",
            "data.seq_len": 16,
            "data.cache_dir": str(folder / "cache"),
            "train.num_steps": STEPS,
            "train.batch_size": BATCH,
        }
        return batches("roberta:smoke", overrides | {key.replace("__", "."): value for key, value in values.items()})

    return made


def documents_of(result: CorpusBatches, cursors: range) -> list[tuple[int, int]]:
    """Returns the two words, source and number, of every sequence."""
    ids = np.concatenate([result.batch(cursor)["input_ids"][:, 1:3] for cursor in cursors])
    return list(map(tuple, ids.tolist()))


def counts(result: CorpusBatches, cursors: range = range(STEPS)) -> list[int]:
    """Returns how many sequences come from the sources, the smallest first."""
    sources = [source for source, _ in documents_of(result, cursors)]
    return sorted(sources.count(source) for source in set(sources))


def test_unimax_over_a_run(make: Make) -> None:
    """1600 sequences: 40 documents in 4 epochs are 160, of the 400 and 1600 others 720 each."""
    result = make(data__mixture_alpha=0.0, data__mixture_epochs="..4")
    assert counts(result) == [160, 720, 720]
    shares = [line.partition(": ")[2] for line in result._pipeline.mixture_lines(STEPS)]
    assert shares == [
        f"{share}% of the sequences, {epochs} epochs"
        for share, epochs in zip(("10.00", "45.00", "45.00"), (4, 1.8, 0.45), strict=True)
    ]
    again = make(data__mixture_alpha=0.0, data__mixture_epochs="..4")
    for cursor in (99, 0, 37, 50):  # a run that resumes anywhere, on a host with some sequences
        for name, array in again.batch(cursor, slice(3, 9)).items():
            np.testing.assert_array_equal(array, result.batch(cursor)[name][3:9])
    for stop in range(1, STEPS, 9):
        small, *_ = counts(result, range(stop))
        assert abs(small - 1.6 * stop) <= 1


def test_limits_of_single_sources_and_weights(make: Make) -> None:
    assert counts(make("@1@3..", "@1", "@98@..0.5")) == [400, 400, 800]
    assert counts(make("@1@..1", "@1", "@2")) == [40, 520, 1040]


def test_shares_of_tokens(make: Make) -> None:
    """Sequences of a and b have 16 tokens, of c 4: a third of the tokens of each, so four times as many sequences."""
    result = make("@1", "@1", "@1", data__mixture_unit="tokens")
    assert counts(result) == [266, 267, 1067]
    tokens = {source: 0 for source, _ in documents_of(result, range(3))}
    for cursor in range(STEPS):
        batch = result.batch(cursor)
        for ids, segments in zip(batch["input_ids"], batch["segment_ids"], strict=True):
            tokens[ids[1]] += np.count_nonzero(segments)
    assert max(tokens.values()) / min(tokens.values()) == pytest.approx(1, abs=0.01)


def test_sources_continue_when_a_phase_mixes_them_otherwise(make: Make) -> None:
    """As in mmBERT, whose languages get closer to equal shares in later phases: epochs go on, none begins again."""
    phases = ("40%:data.mixture_alpha=1.0", "10%:data.mixture_alpha=0.5,train.batch_size=8")
    result = make(data__mixture_alpha=0.0, train__phases=phases)
    read: dict[int, list[int]] = {}
    for source, number in documents_of(result, range(STEPS)):
        read.setdefault(source, []).append(number)
    streams = sorted(read.values(), key=len)
    np.testing.assert_allclose(list(map(len, streams)), [286.8, 416.2, 817.0], atol=2)
    for stream, size in zip(streams, SIZES.values(), strict=True):
        epochs = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)


def test_phases_have_sources_of_their_own(make: Make, folder: Path) -> None:
    """a and b, then c alone, then a and c: what was read goes on where it stopped, and nothing else is read."""
    a, b, c = (f"lines:{folder}/{name}.txt" for name in SIZES)
    phases = (f"40%:data.sources={a}@0.25,{b}@0.75", f"40%:data.sources={c}", f"10%:data.sources={a}@1,{c}@1")
    result = make(train__phases=phases, data__sources=(f"{b}@3", f"{c}@1"))
    read = {name: documents_of(result, range(first, last)) for name, first, last in zip("wxyz", *BOUNDS, strict=True)}
    of = {phase: [source for source, _ in documents] for phase, documents in read.items()}
    (word_c,) = set(of["x"])
    word_a, word_b = sorted({*of["w"]}, key=of["w"].count)
    assert {*of["y"]} == {word_a, word_c} and {*of["z"]} == {word_b, word_c}
    assert abs(of["w"].count(word_a) - 160) <= 8 and abs(of["z"].count(word_b) - 120) <= 8
    for word, size in zip((word_a, word_b, word_c), SIZES.values(), strict=True):
        stream = [number for each in read.values() for source, number in each if source == word]
        epochs = [stream[begin : begin + size] for begin in range(0, len(stream), size)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
    lines = dict(line.split(": ") for line in result._pipeline.mixture_lines(STEPS))
    assert list(lines) == [f"{folder.name}-{name}" for name in SIZES]
    assert lines[f"{folder.name}-c"].startswith(f"{(of['x'] + of['y'] + of['z']).count(word_c) / 16:.2f}%")
    other = make(train__phases=phases, data__sources=(f"{b}@3", f"{c}@1"))
    for cursor in (99, 0, 40, 81):
        np.testing.assert_array_equal(other.batch(cursor)["input_ids"], result.batch(cursor)["input_ids"])


def test_held_out_text_is_that_of_all_phases(make: Make, folder: Path) -> None:
    a, b, c = (f"lines:{folder}/{name}.txt" for name in SIZES)
    values = {"data__eval_sources": (), "data__eval_fraction": 0.2, "data__sources": (b,)}
    result = make(train__phases=(f"50%:data.sources={a}@1,{c}@2",), **values)
    assert list(result.held_out) == [f"{folder.name}-{name}" for name in "acb"]
    read = {*documents_of(result, range(STEPS))}
    for batch in (batch for each in result.held_out.values() for batch in each):
        held_out = {tuple(ids[1:3].tolist()) for ids in batch["input_ids"][batch["example_weights"][:, 0] > 0]}
        assert held_out and not held_out & read


def test_a_file_names_sources(make: Make, folder: Path, tmp_path: Path) -> None:
    """Their weights are settings: a run does not resume when the file has changed."""
    texts = [f"lines:{folder}/{name}.txt@{weight}" for name, weight in zip(SIZES, (1, 2, 5), strict=True)]
    languages = tmp_path / "languages.txt"
    languages.write_text("# three languages\n" + "\n\n".join(texts) + "\n")
    listed = make(
        data__sources=(f"@{languages}",), train__phases=(f"50%:data.sources=@{languages},train.batch_size=8",)
    )
    named = make(data__sources=tuple(texts), train__phases=("50%:train.batch_size=8",))
    for cursor in (3, 60):
        np.testing.assert_array_equal(listed.batch(cursor)["input_ids"], named.batch(cursor)["input_ids"])
    before, plain = listed._prepared.digests, named._prepared.digests
    assert before == plain | {f"@{languages}": before[f"@{languages}"]}
    languages.write_text("\n".join(texts).replace("@2", "@3"))
    after = make(data__sources=(f"@{languages}",))._prepared.digests
    assert [name for name in before if before[name] != after[name]] == [f"@{languages}"]
    for text, words in (
        ("\n# nothing\n", "names no source"),
        ("lines:missing.txt", "'lines:missing.txt': no such file"),
    ):
        languages.write_text(text)
        with pytest.raises(UserError, match=words):
            make(data__sources=(f"@{languages}",))
    with pytest.raises(UserError, match=r"'@none.txt': none.txt cannot be read: No such file .*; @FILE names a source"):
        make(data__sources=("@none.txt",))


def test_what_cannot_be_mixed_is_refused(make: Make) -> None:
    with pytest.raises(UserError, match=r"data.mixture_alpha mixes by size: remove @WEIGHT from data.sources"):
        make("@1", "@1", "@1", data__mixture_alpha=0.3)
    with pytest.raises(UserError, match=r"from step 50 on: data.sources: give every source a weight"):
        make("@1", "@1", "", train__phases=("50%:data.sources=builtin:python-docs",))
    with pytest.raises(UserError, match=r"data.sources: 'text:nothing.txt': no such file"):
        make(train__phases=("50%:data.sources=text:nothing.txt",))
    with pytest.raises(UserError, match=r"data.mixture_epochs: epochs are MIN..MAX, such as 1..4 or ..4, not '4'"):
        make(data__mixture_epochs="4")
    with pytest.raises(
        UserError, match=r"most epochs of all sources are 1,020 sequences, .* 1,600; lower train.num_steps"
    ):
        make(data__mixture_epochs="..0.5")
    with pytest.raises(UserError, match=r"held-out sources have no weights and no epochs"):
        make(data__eval_sources=("builtin:python-docs@..2",))


def test_the_length_of_a_run_with_limits_is_fixed(make: Make, tmp_path: Path) -> None:
    """Another length would give other shares, so other batches than before the checkpoint."""
    for epochs, is_fixed in (("..", False), ("..4", True)):
        cfg = make(data__mixture_epochs=epochs).config
        workdir = tmp_path / str(is_fixed)
        write_config(workdir, cfg)
        (workdir / "checkpoints" / "1").mkdir(parents=True)
        longer = load_config(cfg, {"train.num_steps": STEPS + 1})
        if is_fixed:
            with pytest.raises(UserError, match=r"cannot resume \(.*train.num_steps: 100 there, 101 here"):
                changed_keys(workdir, longer)
        else:
            assert ("train.num_steps", 100, 101) in changed_keys(workdir, longer)
