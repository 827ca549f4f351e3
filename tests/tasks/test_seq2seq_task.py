"""Sequence to sequence as a task: tokens of sources and targets, metrics of texts, and its objective."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokens_lab import make_features, sentences, task_config, theirs, trained

from bertjax.errors import UserError
from bertjax.tasks.metrics.generated_text import metric_names, require_libraries, text_scores
from bertjax.tasks.readers.examples import TextExamples, read_examples

GENERATED = ["the cat sat on the mat .", "a dog", "There is no tree here."]
REFERENCES = ["the cat sat on a mat .", "two dogs bark", "There is no tree here."]


def examples(sources: list[str], targets: list[str] | None) -> TextExamples:
    numbers = [str(index) for index in range(len(sources))]
    return TextExamples(sources, None, targets, None, numbers, numbers)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_sources_and_targets_have_the_tokens_of_transformers(family: str) -> None:
    sources, targets = [text for text in sentences(30) if text], [text for text in sentences(40, seed=1) if text]
    targets = targets[: len(sources)]
    config = task_config(
        kind="seq2seq", train=("tsv:a",), max_length=16, max_target_length=12, source_prefix="the dogs: "
    )
    data = make_features(config, examples(sources, targets), trained(family))
    tokenizer, features = theirs(family), data.features
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        here = features.tokens[features.offsets[index] : features.offsets[index + 1]]
        assert here.tolist() == tokenizer("the dogs: " + source, truncation=True, max_length=16).input_ids
        label = features.targets.tokens[features.targets.offsets[index] : features.targets.offsets[index + 1]]
        ids = tokenizer(text_target=target, truncation=True, max_length=13).input_ids
        assert label.tolist() == ids[1:], "the decoder starts with the first token"
    cut = [
        sum(len(tokenizer(text).input_ids) > limit for text in texts) for texts, limit in ((sources, 13), (targets, 13))
    ]
    assert [note.split()[0] for note in data.notes][1] == str(cut[1]) and "sources" in data.notes[0]


def test_a_decoder_that_starts_with_the_end_token_predicts_the_first_one() -> None:
    config = task_config(kind="seq2seq", train=("tsv:a",), start_token="sep")
    data = make_features(config, examples(["a cat"], ["a mat"]), trained("roberta"))
    assert data.features.targets.tokens.tolist() == theirs("roberta")("a mat").input_ids


def test_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("source\ttarget\na\tb\n")
    assert read_examples(task_config(kind="seq2seq", train=(f"tsv:{tmp_path}/a.tsv",))).labels == ["b"]  # type: ignore[union-attr]
    (tmp_path / "a.jsonl").write_text('{"source": "a", "target": ["b"]}\n')
    with pytest.raises(UserError, match=r"a.jsonl:1: field 'target' holds list where text is expected"):
        read_examples(task_config(kind="seq2seq", train=(f"jsonl:{tmp_path}/a.jsonl",)))


def test_metrics_are_those_of_the_libraries() -> None:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu import corpus_bleu, corpus_chrf

    scores = text_scores(("bleu", "chrf", "rouge"), GENERATED, REFERENCES)
    assert list(scores.metrics) == metric_names(("bleu", "chrf", "rouge"))
    assert scores.metrics["bleu"] == corpus_bleu(GENERATED, [REFERENCES]).score
    assert scores.metrics["chrf"] == corpus_chrf(GENERATED, [REFERENCES]).score
    rouge = RougeScorer(["rougeL"], use_stemmer=True)
    of_texts = [rouge.score(*pair)["rougeL"].fmeasure for pair in zip(REFERENCES, GENERATED, strict=True)]
    assert scores.metrics["rougeL"] == pytest.approx(100 * np.mean(of_texts))
    assert "tok:13a" in scores.signatures["bleu"] and "version:" in scores.signatures["chrf"]
    assert text_scores(("bleu",), ["你好世界"], ["你好世界"], "zh").metrics["bleu"] == pytest.approx(100.0)


def test_only_the_first_texts_are_generated() -> None:
    config = task_config(kind="seq2seq", train=("tsv:a",), text_metrics=("chrf",))
    result = config.spec.compute_metrics(config, examples(["x", "y", "z"], REFERENCES), None, GENERATED[:2], ())
    assert result.metrics == text_scores(("chrf",), GENERATED[:2], REFERENCES[:2]).metrics
    assert result.samples[1] == {"source": "y", "target": "two dogs bark", "output": "a dog"}


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UserError, match=r"text_metrics: bleu needs sacrebleu; pip install 'bertjax\[seq2seq\]'"):
        require_libraries(("bleu",))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"pair_column": "b"}, r"task.pair_column='b': task.kind=seq2seq reads one text"),
    (
        {"text_metrics": ("blue",)},
        r"task.seq2seq.text_metrics must be one of bleu, chrf, rouge, .* did you mean 'bleu'",
    ),
    ({"group_by_length": True}, r"task.group_by_length=true is for sequences of one example: set task.packing=false"),
    ({"train": ("conll:a",)}, r"cannot hold examples of task.kind=seq2seq; write one of parallel:, tsv:"),
    ({"labels": ("a", "b")}, r"task.labels: task.kind=seq2seq has none"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task_config(**{"kind": "seq2seq", "train": ("tsv:a",)} | values)
