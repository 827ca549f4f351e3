"""Linear probes: their states are those of transformers, their scores those of scikit-learn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from models_lab import quick_compilation, write_folder
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bertjax
from bertjax.cli import main
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError
from bertjax.experiment.open_model import open_model
from bertjax.inference.probing import ProbeData, Probes, control_labels, f1_without, join_seeds, probe, score_layers
from bertjax.tasks.readers.examples import TextExamples, WordExamples

TEXTS = ["the cat sat.", "a much longer text about cafés and 北京", "tea", "cats, dogs and curiously more dogs"]
WORDS = ["tea", "cats", "dogs", "the", "café", "more"]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "bert"
    write_folder("bert", path)
    return path


def probes_of(folder: Path, kind: str, labels: tuple[str, ...]) -> Probes:
    opened = open_model(folder)
    return Probes(opened.model, opened.tokenizer, TaskConfig(kind, ("jsonl:x",), max_length=64), labels)


def sentences(count: int) -> WordExamples:
    """Returns sentences whose tags say whether a word has an e, but for a tenth of them, which are O."""
    draw = np.random.default_rng(count)
    words = [[WORDS[index] for index in draw.integers(0, len(WORDS), draw.integers(1, 6))] for _ in range(count)]
    tags = [[("E" if "e" in word else "N") if draw.random() < 0.9 else "O" for word in each] for each in words]
    return WordExamples(words, tags, list(map(str, range(count))), [f"x:{index}" for index in range(count)])


@pytest.mark.parametrize("family", ["bert", pytest.param("xlnet", marks=pytest.mark.long), "modernbert"])
def test_states_of_texts_are_the_means_of_transformers(family: str, tmp_path: Path) -> None:
    write_folder(family, tmp_path / family)
    labels = ["a", "b", "a", "b"]
    texts = TextExamples(TEXTS, None, labels, None, list("0123"), list("0123"))
    data = probes_of(tmp_path / family, "classification", ("a", "b")).read(texts, 10, seed=3)
    order = np.random.default_rng(3).permutation(4)
    model = transformers.AutoModel.from_pretrained(tmp_path / family).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / family)
    for row, index in enumerate(order):
        inputs = tokenizer(TEXTS[index], return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs, output_hidden_states=True).hidden_states
        np.testing.assert_allclose(data.states[:, row], [each[0].mean(0).numpy() for each in states], atol=2e-5)
        assert data.labels[row] == ["a", "b"].index(labels[index])


def test_states_of_words_are_those_of_their_first_tokens(folder: Path) -> None:
    examples = sentences(12)
    probes = probes_of(folder, "tokens", ("E", "N", "O"))
    data = probes.read(examples, 20, seed=0)
    assert len(data.words) == len(data.labels) == data.states.shape[1] == 20
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    row = 0
    for index in np.random.default_rng(0).permutation(12):
        inputs = tokenizer(examples.words[index], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            states = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)[:, 0].numpy()
        of_word = inputs.word_ids()
        for number, word in enumerate(examples.words[index]):
            if row < 20:
                assert data.words[row] == word
                np.testing.assert_allclose(data.states[:, row], states[:, of_word.index(number)], atol=2e-5)
                row += 1
    assert row == 20


def test_a_probe_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    inputs, others = draw.normal(size=(200, 8)) * 3 + 1, draw.normal(size=(100, 8)) * 3 + 1
    labels = (inputs @ draw.normal(size=(8, 3)) + draw.gumbel(size=(200, 3))).argmax(axis=1)
    by_hand = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(inputs, labels)
    np.testing.assert_array_equal(probe(inputs, labels, others), by_hand.predict(others))
    assert (probe(inputs, np.full(200, 2), others) == 2).all()


def test_f1_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(1)
    for _ in range(20):
        right, predicted = draw.integers(0, 4, (2, 30))
        expected = f1_score(right, predicted, labels=[0, 1, 3], average="micro", zero_division=0.0)
        assert f1_without(right, predicted, 2) == pytest.approx(expected, abs=1e-12)
    assert f1_without(np.array([2]), np.array([2]), 2) == 0.0


def test_a_control_task_is_a_function_of_the_word() -> None:
    words = WORDS * 3
    labels = np.array([0] * 9 + [1])
    chosen = control_labels(words, labels, WORDS, seed=0)
    assert (chosen.reshape(3, -1) == chosen[: len(WORDS)]).all()
    many = [str(number) for number in range(5000)]
    shares = control_labels(many, labels, many, seed=0)
    assert shares.mean() == pytest.approx(0.1, abs=0.02)
    assert (control_labels(many, labels, many, seed=1) != shares).any()


def test_what_is_in_a_state_is_found_and_what_is_not_is_not() -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 400)
    known, unknown = draw.normal(size=(2, 400, 5))
    known[:, 0] += 6.0 * labels
    states = np.stack([unknown, known]).astype(np.float32)
    halves = [ProbeData(states[:, part], labels[part], ()) for part in (slice(200), slice(200, None))]
    scores = join_seeds([score_layers(*halves, ("a", "b"), seed) for seed in (0, 1)])
    assert [each.layer for each in scores] == [0, 1] and scores[1].accuracy[0] > 0.98 and scores[0].accuracy[0] < 0.6
    assert len(scores[0].accuracy) == 2 and scores[0].control == scores[0].f1 == () and scores[0].selectivity is None


def test_embeddings_tell_words_apart(folder: Path) -> None:
    probes = probes_of(folder, "tokens", ("E", "N", "O"))
    train, held_out = probes.read(sentences(80), 200, seed=0), probes.read(sentences(30), 60, seed=0)
    (first, *_) = score_layers(train, held_out, ("E", "N", "O"), 0)
    assert first.accuracy[0] > 0.7 and first.f1[0] > 0.7
    assert first.control[0] > 0.95  # six word forms are easily memorized
    assert first.selectivity == pytest.approx(first.accuracy[0] - first.control[0])


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, count in (("train", 40), ("dev", 20)):
        examples = sentences(count)
        blocks = (
            "".join(f"{word} {tag}\n" for word, tag in zip(*pair, strict=True))
            for pair in zip(examples.words, examples.tags or [], strict=True)
        )
        (tmp_path / f"{name}.txt").write_text("\n".join(blocks))
    arguments = ["probe", "--model", str(folder), "--train", f"conll:{tmp_path}/train.txt"]
    arguments += ["--eval", f"conll:{tmp_path}/dev.txt", "--seeds", "0,1", "--max-examples", "100"]
    assert main([*arguments, "--out", str(tmp_path / "scores.json"), "--html", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr().out
    assert "token classification of" in printed and "selectivity" in printed and "best layer: " in printed
    (layers,) = json.loads((tmp_path / "scores.json").read_text()).values()
    assert [each["layer"] for each in layers] == list(range(len(layers))) and len(layers[0]["accuracy"]) == 2
    page = (tmp_path / "page.html").read_text()
    assert "Accuracy on the control task" in page and "selectivity" in page

    (tmp_path / "one.tsv").write_text("text\tlabel\ntea\tgood\ncats\tgood\n")
    with pytest.raises(UserError, match="the data has the label good alone; a probe needs two"):
        bertjax.probe(str(folder), [f"tsv:{tmp_path}/one.tsv"], [f"tsv:{tmp_path}/one.tsv"])
    (tmp_path / "two.tsv").write_text("text\tlabel\ntea\tgood\ncats\tbad\ndogs\tgood\nthe\tbad\n")
    scores = bertjax.probe(str(folder), [f"tsv:{tmp_path}/two.tsv"], [f"tsv:{tmp_path}/two.tsv"], seeds="0")
    assert all(each["accuracy"] == [1.0] and "control" not in each for each in scores["bert"])
    assert main([*arguments[:-1], "1"]) == 2
    assert "--max-examples must be at least 2" in capsys.readouterr().err
