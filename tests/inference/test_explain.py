"""Explanations by the command and from Python: what they explain is what the model predicts; bad input is one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models_lab import quick_compilation
from models_lab import write_folder as write_language_model
from test_predictions import write_folder

import bertjax
from bertjax import cli
from bertjax.errors import UserError

TEXT = "naïve 北京 cafés offer, curiously, tea"
LEFT_OUT = {
    0: "北京 cafés offer, curiously, tea",
    6: "naïve 北京 cafés offer, , tea",
    8: "naïve 北京 cafés offer, curiously,",
}


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models of every kind."""
    root = tmp_path_factory.mktemp("models")
    heads = {"score": "SequenceClassification", "class": "SequenceClassification"}
    heads |= {"tags": "TokenClassification", "answers": "QuestionAnswering"}
    labels = {
        "score": ("score",),
        "class": ("no", "yes", "maybe"),
        "tags": ("O", "B-PER", "I-PER"),
        "answers": ("a", "b"),
    }
    for name, head in heads.items():
        write_folder(root / name, head, labels[name])
    write_language_model("bert", root / "masks")
    return {path.name: path for path in root.iterdir()}


def words_of(record: dict[str, Any], field: str = "text") -> list[str]:
    return [each["word"] for each in record["words"] if each["field"] == field]


@pytest.mark.long
def test_leave_one_out_as_predict(folders: dict[str, Path]) -> None:
    (record,) = bertjax.explain(folders["score"], [TEXT], method="leave-one-out")
    assert record["baseline"] == "remove" and record["target"] is None
    assert [TEXT[each["start"] : each["end"]] for each in record["words"]] == words_of(record)
    full, *others = bertjax.predict(folders["score"], [TEXT, *LEFT_OUT.values()])
    assert record["score"] == pytest.approx(full["score"], abs=1e-5)
    for number, other in zip(LEFT_OUT, others, strict=True):
        expected = full["score"] - other["score"]
        assert record["words"][number]["score"] == pytest.approx(expected, abs=3e-6)


@pytest.mark.long
def test_predicted_class_and_target(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    texts = [TEXT, "<script>alert(1)</script> tea & cafés"]
    records = bertjax.explain(folders["class"], texts, html=tmp_path / "page.html", out=tmp_path / "out.jsonl")
    predicted = bertjax.predict(folders["class"], texts)
    assert [each["target"] for each in records] == [each["label"] for each in predicted]
    assert all(each["completeness_error"] < 0.01 and each["steps"] >= 50 for each in records)
    page = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in page and "&lt;" in page
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == list(records)
    arguments = ["explain", "--model", str(folders["class"]), TEXT, "--target", "yes", "--method", "attention-rollout"]
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "yes, score" in printed and "\x1b" not in printed and " cafés +0." in printed


@pytest.mark.long
def test_tags(folders: dict[str, Path]) -> None:
    (predicted,) = bertjax.predict(folders["tags"], [TEXT])
    (record,) = bertjax.explain(folders["tags"], [TEXT], word="cafés", method="leave-one-out")
    assert words_of(record) == predicted["words"] and record["baseline"] == "mask"
    assert record["target"] == predicted["tags"][predicted["words"].index("cafés")]
    (other,) = bertjax.explain(folders["tags"], [TEXT], word="3", target="I-PER", method="gradient-x-input")
    assert (other["word"], other["target"]) == (predicted["words"][3], "I-PER")
    with pytest.raises(
        UserError, match="word=coffee is not among its words; give one of its words, or a number from 0"
    ):
        bertjax.explain(folders["tags"], [TEXT], word="coffee")


@pytest.mark.long
def test_answers(folders: dict[str, Path]) -> None:
    pair = ("cafés offer?", TEXT)
    (predicted,) = bertjax.predict(folders["answers"], [pair])
    (record,) = bertjax.explain(folders["answers"], [pair], method="gradient-x-input")
    assert record["target"] == predicted["answer"]
    assert record["score"] == pytest.approx(predicted["score"], abs=1e-5)
    assert words_of(record, "question") == ["cafés", "offer", "?"]
    assert "".join(words_of(record, "context")) == TEXT.replace(" ", "")
    (chosen,) = bertjax.explain(folders["answers"], ["cafés?"], pair=TEXT, target="tea", method="attention-rollout")
    assert chosen["target"] == "tea"
    with pytest.raises(UserError, match="target=coffee is not a text in the context"):
        bertjax.explain(folders["answers"], [pair], target="coffee")


@pytest.mark.long
def test_masks(folders: dict[str, Path]) -> None:
    text = "cafés [MASK] tea"
    best = bertjax.fill_mask(folders["masks"], [text], top_k=1)[0][0][0].token
    (record,) = bertjax.explain(folders["masks"], [text], method="leave-one-out")
    assert record["target"] == best and record["words"][1] == {
        "word": "[MASK]", "field": "text", "start": 6, "end": 12, "score": 0.0,
    }  # fmt: skip


@pytest.mark.long
def test_similarities(folders: dict[str, Path]) -> None:
    pair = ("cafés offer tea", TEXT)
    first, second = bertjax.embed(folders["masks"], list(pair))
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    (record,) = bertjax.explain(folders["masks"], [pair])
    assert record["score"] == pytest.approx(float(cosine), abs=1e-5)
    assert words_of(record) == ["cafés", "offer", "tea"] and record["completeness_error"] < 0.01
    (removed,) = bertjax.explain(folders["masks"], [pair], method="leave-one-out")
    shorter = bertjax.embed(folders["masks"], ["cafés offer"])[0]
    expected = cosine - shorter @ second / np.linalg.norm(shorter) / np.linalg.norm(second)
    assert removed["words"][2]["score"] == pytest.approx(float(expected), abs=3e-6)


@pytest.mark.parametrize(
    ("name", "text", "flags", "message"),
    [
        (
            "class",
            TEXT,
            ["--target", "perhaps"],
            "--target=perhaps is not a label of the model; it has no, yes, maybe",
        ),
        ("score", TEXT, ["--target", "no"], "--target=no: the model computes one number, which needs no target"),
        ("class", TEXT, ["--word", "tea"], "--word=tea: only tags are explained word by word"),
        ("class", "", [], "inputs[0]: the text has no word to explain"),
        ("class", "tea " * 700, [], "are longer than"),
        (
            "class",
            TEXT,
            ["--baseline", "remove"],
            "--baseline=remove is for leave-one-out; integrated-gradients needs pad",
        ),
        ("class", TEXT, ["--out", "a.csv"], "--out a.csv must end in .json or .jsonl"),
        ("masks", TEXT, [], "no [MASK] in"),
        ("masks", "[MASK]", ["--target", "coffee pot"], "--target=coffee pot is not one token of this model"),
        ("masks", TEXT, ["--kind", "similarity"], "give the second text with --pair"),
        ("masks", TEXT, ["--kind", "tokens"], "--kind tokens: the model has no such head"),
        ("tags", TEXT, ["--method", "leave-one-out", "--baseline", "remove"], "the explained position would move"),
    ],
)
def test_bad_input_is_one_line(
    name: str, text: str, flags: list[str], message: str, folders: dict[str, Path], capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["explain", "--model", str(folders[name]), text, *flags]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.strip().splitlines()
    assert message in line and not printed.out
