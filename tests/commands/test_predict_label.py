"""Tests `predict` and `pseudo-label`: input formats, outputs that finetuning reads, one-line errors."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from lab import Finished, sentences
from parity.compare import random_params
from scipy.special import expit

import bertjax
from bertjax.cli import main
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.hf.pretrained import PretrainedModel, load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.tasks.readers.examples import read_examples

Capture = pytest.CaptureFixture[str]
LABELS = ("animal", "thing")
TEXTS = ["The cat sees the dog.", "the river", "The teacher paints the garden and the house.", "a", ""]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def say(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))


def records(path: Path | str) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if isinstance(path, Path) else path
    return [json.loads(line) for line in text.splitlines()]


def model_of(finished: Finished, folder: Path, head: str, labels: tuple[str, ...]) -> Path:
    """Returns a folder with the tokenizer of the finished run and a random model for a task."""
    export = finished.workdir / "export"
    source = load_pretrained(export)
    config = dataclasses.replace(source.config, labels=labels)
    heads = ("pooler", head) if head == "sequence_classification" else (head,)
    params = random_params(config, heads)
    if len(labels) == 2 and head == "sequence_classification":  # each label for half of the sentences
        tokenizer, bias = load_tokenizer(export), params["sequence_head"]["output"]["bias"]
        model = PretrainedModel(config, params, heads)
        outputs = [model([tokenizer.encode_with_specials(text)]).sequence_logits for text in sentences(9, 1)]
        gaps = np.array([float(logits[0, 0] - logits[0, 1]) for logits in outputs])
        params["sequence_head"]["output"]["bias"] = bias - np.array([np.median(gaps), 0.0], np.float32)
    save_pretrained(folder, params, config, heads=heads, tokenizer=source.tokenizer_files)
    return folder


@pytest.fixture(scope="module")
def classifier(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_of(finished, tmp_path_factory.mktemp("classifier") / "model", "sequence_classification", LABELS)


@pytest.mark.long
def test_all_forms_of_input_say_the_same(
    classifier: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "\n".join(TEXTS[:4]) + "\n"
    objects = "".join(json.dumps({"id": f"n{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS[:4]))
    (tmp_path / "t.txt").write_text(lines)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(objects.encode()))
    (tmp_path / "t.tsv").write_text("name\tbody\n" + "".join(f"n{i}\t{text}\n" for i, text in enumerate(TEXTS[:4])))
    (tmp_path / "t.csv").write_text("".join(f'"{text}",x\n' for text in TEXTS[:4]))
    columns = {"name": [f"n{i}" for i in range(4)], "body": TEXTS[:4]}
    datasets.Dataset.from_dict(columns).to_parquet(str(tmp_path / "t.parquet"))
    out = tmp_path / "out.jsonl"
    records_of: dict[str, list[dict[str, Any]]] = {}
    for name, more in {
        "t.txt": [],
        "t.jsonl.gz": [],
        "t.tsv": ["--text-column", "body", "--id-column", "name"],
        "t.parquet": ["--text-column", "body", "--id-column", "name"],
        "t.csv": ["--no-header", "--text-column", "0"],
    }.items():
        assert run("predict", "--model", classifier, "--in", tmp_path / name, "--out", out, *more) == 0
        records_of[name] = records(out)
        assert capsys.readouterr().out.startswith("4 examples, classification, in ")
    for name, text in (("lines", lines), ("objects", objects)):
        say(monkeypatch, text.encode())
        assert run("predict", "--model", classifier, "--in", "-", "--out", "-", "--with-input") == 0
        printed = capsys.readouterr()
        records_of[name] = records(printed.out)
        assert "4 examples" in printed.err
        assert [record.pop("text") for record in records_of[name]] == TEXTS[:4]
    loaded = load_pretrained(classifier)
    records_of["python texts"] = bertjax.predict(classifier, TEXTS[:4])
    records_of["python path"] = bertjax.predict(loaded, tmp_path / "t.txt")
    records_of["python dicts"] = bertjax.predict(loaded, [{"text": text} for text in TEXTS[:4]])
    first = [{**record, "id": None} for record in records_of["t.txt"]]
    for name, result in records_of.items():
        assert [{**record, "id": None} for record in result] == first, name
        ids = [f"n{i}" for i in range(4)] if name in ("t.jsonl.gz", "t.tsv", "t.parquet", "objects") else list(range(4))
        assert [record["id"] for record in result] == ids, name
    assert set(first[0]["probabilities"]) == set(LABELS)
    assert sum(first[0]["probabilities"].values()) == pytest.approx(1.0, abs=2e-6)
    assert len({record["score"] for record in first}) == 4


def test_metrics_against_labels_and_an_order_over_files(classifier: Path, tmp_path: Path, capsys: Capture) -> None:
    texts = sentences(30, 3)
    out = tmp_path / "out.jsonl"
    (tmp_path / "a.txt").write_text("\n".join(texts))
    assert run("predict", "--model", classifier, "--in", tmp_path / "a.txt", "--out", out) == 0
    labels = [record["label"] for record in records(out)]
    wrong = [LABELS[0] if label == LABELS[1] else LABELS[1] for label in labels[:6]]
    rows = [{"text": text, "label": label} for text, label in zip(texts, [*wrong, *labels[6:]], strict=True)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:11]))
    (tmp_path / "c.tsv").write_text("text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in rows[11:]))
    capsys.readouterr()
    files = [tmp_path / "b.jsonl", tmp_path / "c.tsv"]
    assert run("predict", "--model", classifier, "--in", *files, "--out", out, "--score", "--batch-tokens", 90) == 0
    assert f"accuracy {24 / 30:.4f}" in capsys.readouterr().out
    assert [(record["id"], record["label"]) for record in records(out)] == list(enumerate(labels))


@pytest.mark.long
def test_words_and_questions(finished: Finished, tmp_path: Path, capsys: Capture) -> None:
    tagger = model_of(finished, tmp_path / "tagger", "token_classification", ("O", "B-A", "I-A"))
    (tmp_path / "t.conll").write_text("The x O\ncat x B-A\n\nthe x O\n")
    out = tmp_path / "out.jsonl"
    assert run("predict", "--model", tagger, "--in", tmp_path / "t.conll", "--out", out, "--score") == 0
    assert [record["words"] for record in records(out)] == [["The", "cat"], ["the"]]
    assert bertjax.predict(tagger, [["The", "cat"], ("the",)]) == records(out)
    with pytest.raises(bertjax.UserError, match=r"inputs\[1\]: give a text or a list of words"):
        bertjax.predict(tagger, ["The cat", 3])
    assert "precision" in capsys.readouterr().out
    reader = model_of(finished, tmp_path / "reader", "question_answering", ("LABEL_0", "LABEL_1"))
    question = {"id": "q", "question": "the dog", "context": "The cat sees the dog. " * 9}
    (tmp_path / "q.jsonl").write_text(
        json.dumps({**question, "answers": {"text": ["cat"], "answer_start": [4]}}) + "\n"
    )
    more = ["--max-length", 40, "--top-k", 2]
    assert run("predict", "--model", reader, "--in", tmp_path / "q.jsonl", "--out", out, "--score", *more) == 0
    assert "exact_match" in capsys.readouterr().out
    (record,) = records(out)
    assert record["id"] == "q" and len(record["best"]) == 2
    assert question["context"][record["start"] : record["end"]] == record["answer"]


@pytest.mark.long
def test_a_classifier_labels_and_a_task_reads_it(classifier: Path, tmp_path: Path, capsys: Capture) -> None:
    texts = sorted(set(sentences(120, 5)))
    (tmp_path / "t.txt").write_text("\n".join([*texts, texts[0], " "]) + "\n")
    assert run("predict", "--model", classifier, "--in", tmp_path / "t.txt", "--out", tmp_path / "p.jsonl") == 0
    predicted = {text: record for text, record in zip(texts, records(tmp_path / "p.jsonl"), strict=False)}
    threshold = float(np.median([record["score"] for record in predicted.values()]))
    gold = texts[:20]
    lines = [f"{text}\t{LABELS.index(predicted[text]['label']) if i else 0}" for i, text in enumerate(gold)]
    (tmp_path / "gold.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    capsys.readouterr()
    out = tmp_path / "silver.jsonl"
    more = ["--min-confidence", threshold, "--gold", tmp_path / "gold.tsv"]
    assert run("pseudo-label", "--model", classifier, "--in", tmp_path / "t.txt", "--out", out, *more) == 0
    expected = [text for text in texts[20:] if predicted[text]["score"] >= threshold]
    labeled = records(out)
    assert [record["text"] for record in labeled] == expected and 10 < len(expected) < 90
    assert all(record["confidence"] == predicted[record["text"]]["score"] >= threshold for record in labeled)
    examples = read_examples(TaskConfig("classification", (f"jsonl:{out}",)))
    assert examples.labels == [predicted[text]["label"] for text in expected]  # type: ignore[union-attr]
    facts = json.loads((tmp_path / "silver.labels.json").read_text())
    at = [text for text in gold if predicted[text]["score"] >= threshold]
    right = sum(predicted[text]["label"] == ("animal" if text == gold[0] else predicted[text]["label"]) for text in at)
    assert (facts["kept"], facts["of"]) == (len(expected), len(texts) + 2)
    assert facts["agreement"] == pytest.approx(right / len(at)) and facts["dropped"] == {"empty": 1, "gold": 21}
    printed = capsys.readouterr().out
    assert f"of {len(at)} gold examples {right / len(at):.1%} agree" in printed and facts["trust"] in printed
    tsv = tmp_path / "silver.tsv"
    assert (
        run("pseudo-label", "--model", classifier, "--in", tmp_path / "t.txt", "--out", tsv, "--max-per-class", 3) == 0
    )
    assert "the accuracy of these labels is unknown" in capsys.readouterr().out
    examples = read_examples(TaskConfig("classification", (f"tsv:{tsv}",)))
    assert len(examples) <= 6 and set(examples.labels) <= set(LABELS)  # type: ignore[union-attr,arg-type]


def test_answers_of_a_language_model(tmp_path: Path, capsys: Capture) -> None:
    """By id and by text, with extra words in the answers; no model is loaded."""
    corpus = [{"id": i, "text": f"text {i}"} for i in range(8)]
    answers: list[dict[str, Any]] = [
        {"id": 0, "label": "Positive.", "confidence": 0.95},
        {"id": "1", "label": "negative", "confidence": "0.9"},
        {"id": 2, "label": "As a language model I cannot", "confidence": 0.9},
        {"id": 3, "label": "positive", "confidence": 0.4},
        {"text": "text 4", "label": "negative", "confidence": 1},
        {"text": "text 4", "label": "positive", "confidence": 1},
        {"id": 99, "label": "positive", "confidence": 1},
        {"id": 6, "label": "negative", "confidence": 0.8},
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(each) + "\n" for each in corpus))
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(each) + "\n" for each in answers))
    (tmp_path / "gold.jsonl").write_text(
        '{"text": "text 6", "label": "negative"}\n{"text": "no", "label": "positive"}\n'
    )
    out = tmp_path / "silver.tsv"
    more = ["--in", tmp_path / "corpus.jsonl", "--min-confidence", 0.5, "--gold", tmp_path / "gold.jsonl", "--out", out]
    assert run("pseudo-label", "--labels-file", tmp_path / "answers.jsonl", *more) == 0
    assert out.read_text() == "text\tlabel\ntext 0\tpositive\ntext 1\tnegative\n"
    printed = capsys.readouterr().out
    assert printed.startswith("2 of 8 labels kept, confidence at least 0.5: ")
    assert "2 several labels for one text; 1 no label; 1 ids without a text; 1 texts of the gold sample" in printed
    assert "1 below the confidence" in printed and "'As a language model I cannot' (1)" in printed
    assert "1 of 2 gold texts have no answer" in printed


def test_several_labels_per_text(classifier: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(classifier, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    labeled = json.loads(config.read_text()) | {"problem_type": "multi_label_classification"}
    config.write_text(json.dumps(labeled))
    first = bertjax.predict(tmp_path / "model", TEXTS[:3])
    logits = load_pretrained(classifier)([load_tokenizer(classifier).encode_with_specials(TEXTS[0])]).sequence_logits
    np.testing.assert_allclose(list(first[0]["probabilities"].values()), expit(logits[0]), atol=2e-6)
    assert [record["labels"] for record in first] == [
        [name for name, each in record["probabilities"].items() if each >= 0.5] for record in first
    ]
    highest = [max(record["probabilities"][name] for record in first) for name in LABELS]
    config.write_text(json.dumps(labeled | {"thresholds": [each - 1e-5 for each in highest]}))
    assert sum(len(record["labels"]) for record in bertjax.predict(tmp_path / "model", TEXTS[:3])) == 2
    for wrong, message in (
        ([2.0, 0.1], "must lie in (0, 1)"),
        (0.5, "must be probabilities"),
        ([0.1] * 3, "3 numbers"),
    ):
        config.write_text(json.dumps(labeled | {"thresholds": wrong}))
        with pytest.raises(bertjax.UserError, match="thresholds") as caught:
            bertjax.predict(tmp_path / "model", TEXTS[:3])
        assert message in str(caught.value)
    config.write_text(json.dumps(labeled))
    (tmp_path / "t.txt").write_text("a")
    arguments = ["--model", tmp_path / "model", "--in", tmp_path / "t.txt", "--out", "-"]
    assert run("predict", *arguments, "--kind", "classification") == 2
    assert "the head has several labels per text; use multilabel" in capsys.readouterr().err
    arguments[-1] = str(tmp_path / "silver.jsonl")
    assert run("pseudo-label", *arguments) == 2
    assert "is a model of kind multilabel; labels come from a classifier" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict --model {model} --in nowhere.txt --out {out}", "--in nowhere.txt: no such file"),
        ("predict --model {model} --in {jsonl} --out {out} --text-column body", "no field 'body' (it has id, words)"),
        ("predict --model {model} --in {jsonl} --out {out} --kind qa", "--kind qa: the model has no such head"),
        ("predict --model {model} --in {txt} --out {out} --score", "lines of text hold no labels"),
        (
            "predict --model {model} --in {tsv} --out {out} --text-column body",
            "no column 'body' (it has text, label); set --text-column",
        ),
        ("predict --model {model} --in {tsv} --out {out} --score", "unknown label 'plant'; known are animal, thing"),
        ("predict --model {model} --in {arrow} --out {out}", ".arrow: give .jsonl, .txt"),
        ("predict --model {model} --in {empty} --out {out}", "holds no example"),
        ("predict --model {model} --in {txt} --out {out} --max-length 900", "--max-length=900 is beyond the 64 tokens"),
        ("predict --model {model} --in {txt} --out nowhere/out.jsonl", "no folder nowhere for --out"),
        ("predict --model {bare} --in {txt} --out {out}", "the model has no task"),
        ("predict --model {model} --in {txt} --out {out} --top-k 0", "--top-k must be at least 1"),
        ("pseudo-label --in {txt} --out {out}", "give either --model FOLDER (a classifier) or --labels-file"),
        ("pseudo-label --model {model} --out {out}", "--in is missing"),
        ("pseudo-label --model {model} --in {txt} --out out.csv", "--out out.csv must end in .jsonl or .tsv"),
        (
            "pseudo-label --model {model} --in {txt} --out {out} --min-confidence 90",
            "--min-confidence must lie between 0 and 1",
        ),
        ("pseudo-label --model {model} --in {txt} --out {out} --min-confidence 1", "no label is left to keep: 2 below"),
        ("pseudo-label --model {model} --in {txt} --out {out} --gold {tsv}", "--gold: unknown label 'plant'"),
        ("pseudo-label --labels-file {jsonl} --out {out}", "--labels is missing: name the labels"),
        ("pseudo-label --labels-file {jsonl} --out {out} --labels a,b", "no field 'label'; name the field"),
        (
            "pseudo-label --labels-file {bad} --out {out} --labels a,b",
            "confidence must be a number between 0 and 1, not 'high'",
        ),
        (
            "pseudo-label --labels-file {noid} --out {out} --labels a,b",
            "an id without its text; give the texts with --in",
        ),
    ],
)
def test_refused_in_one_line(
    classifier: Path, finished: Finished, tmp_path: Path, capsys: Capture, words: str, message: str
) -> None:
    files = {
        "txt": "a\nb\n",
        "jsonl": '{"id": 1, "words": "a"}\n',
        "tsv": "text\tlabel\na\tplant\n",
        "empty": "",
        "arrow": "ARROW1",
        "bad": '{"text": "a", "label": "a", "confidence": "high"}\n',
        "noid": '{"id": 1, "label": "a"}\n',
    }
    paths = {"model": classifier, "bare": finished.workdir, "out": tmp_path / "out.jsonl"}
    for name, text in files.items():
        ending = {"empty": "txt", "bad": "jsonl", "noid": "jsonl"}.get(name, name)
        paths[name] = tmp_path / f"{name}.{ending}"
        paths[name].write_text(text)
    assert run(*words.format(**paths).split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"bertjax {words.split()[0]}: ") and message in error and error.count("\n") == 1, error
    assert not paths["out"].exists() and not list(tmp_path.glob(".*.tmp"))


TASK = """
from bertjax.config.defaults import base_config

def get_config():
    config = base_config()
    config.platform = "cpu"
    config.objective.name = "task"
    config.init_from = "{model}"
    config.task.train = ("jsonl:{silver}",)
    config.task.eval = ("tsv:{gold}",)
    config.task.kind = "classification"
    config.task.max_length = 16
    config.task.batch_size = 16
    config.task.epochs = 1.0
    config.schedule.warmup_steps = 1
    config.mesh.data = 1
    config.logging.tensorboard = False
    return config
"""


@pytest.mark.long
def test_from_silver_labels_to_a_run_and_its_predictions(
    classifier: Path, finished: Finished, tmp_path: Path, capsys: Capture
) -> None:
    """The report describes the labels; the run, its export and its evaluation agree on the same texts."""
    texts = sorted(set(sentences(200, 8)))
    (tmp_path / "t.txt").write_text("\n".join(texts) + "\n")
    silver, gold = tmp_path / "silver.jsonl", tmp_path / "gold.tsv"
    gold.write_text("text\tlabel\n" + "".join(f"{text}\t{LABELS[i % 2]}\n" for i, text in enumerate(texts[:30])))
    assert run("pseudo-label", "--model", classifier, "--in", tmp_path / "t.txt", "--out", silver, "--gold", gold) == 0
    config = tmp_path / "task.py"
    config.write_text(TASK.format(model=finished.workdir, silver=silver, gold=gold))
    assert run("finetune", "--config", config, "--workdir", tmp_path / "run") == 0
    page = (tmp_path / "run" / "report.html").read_text()
    facts = json.loads((tmp_path / "silver.labels.json").read_text())
    assert "Pseudo-labels" in page and f"{facts['kept']} of {facts['of']} selected" in page
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    capsys.readouterr()
    predicted = []
    for folder in (tmp_path / "run", tmp_path / "run" / "export"):
        assert run("predict", "--model", folder, "--in", gold, "--out", tmp_path / "p.jsonl", "--score") == 0
        assert f"accuracy {last['eval/accuracy']:.4f}" in capsys.readouterr().out
        predicted.append(records(tmp_path / "p.jsonl"))
    for one, other in zip(*predicted, strict=True):
        assert one["label"] == other["label"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)
