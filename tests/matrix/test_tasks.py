"""Every family x every kind of task: a step, predictions, an export; `transformers` gives the same scores."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import AUTHORS_CODE, MODELS, OBJECTIVE_FAMILIES, TEXTS, common, exported_tokenizer, with_decoder
from ml_collections import ConfigDict

import bertjax
from bertjax.config.extensions import FAMILIES, TASK_KINDS
from bertjax.hf.export_plan import plan_export
from bertjax.hf.pretrained import load_pretrained
from bertjax.tasks.calibration import CalibratedKind

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT_LABELS = {"classification": ["good", "bad", "so so"], "multilabel": ["good,bad", "", "so so"]}
TEXT_LABELS |= {"regression": ["0.5", "1.5", "-1"]}
WORDS = [["The", "cat", "sees", "Garden", "roads", "."], ["Dogs", "like", "the", "river"]]


def write_examples(kind: str, folder: Path) -> str:
    """Writes eight examples; returns their source."""
    pairs = [(TEXTS[i], TEXTS[3 * i + 2]) for i in range(8)]
    if kind in TEXT_LABELS:
        labels = TEXT_LABELS[kind]
        rows = [f"{text}\t{pair}\t{labels[i % 3]}" for i, (text, pair) in enumerate(pairs)]
        (folder / "train.tsv").write_text("\n".join(["text\tpair\tlabel", *rows]) + "\n")
        return f"tsv:{folder}/train.tsv"
    if kind == "tokens":
        sentences = ["\n".join(f"{word}\t{'B-X' if word[0].isupper() else 'O'}" for word in words) for words in WORDS]
        (folder / "train.conll").write_text("\n\n".join(sentences * 4) + "\n")
        return f"conll:{folder}/train.conll"
    if kind == "multiple_choice":
        rows = [
            {"context": text, "question": pair[:9], **choices_of(i), "label": i % 2}
            for i, (text, pair) in enumerate(pairs)
        ]
        (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return f"jsonl:{folder}/train.jsonl"
    assert kind == "qa", f"write examples of task.kind={kind} here"
    rows = [
        {
            "id": str(i),
            "question": question,
            "context": context,
            "answers": {"text": ["the"], "answer_start": [context.index("the")]},
        }
        for i, (question, context) in enumerate(pairs)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"jsonl:{folder}/train.jsonl"


def choices_of(index: int) -> dict[str, list[str]]:
    """Returns the choices of an example, two or three."""
    return {"choices": [TEXTS[(5 * index + number) % len(TEXTS)] for number in range(2 + index % 2)]}


def task_config(family: str, kind: str, folder: Path) -> ConfigDict:
    cfg, scores_last = common(family), bool(FAMILIES.load(family).last_token_classes) and kind in TEXT_LABELS
    cfg.model.causal = scores_last
    if scores_last:  # the class of decoders that scores the last token
        cfg.model.pooling, cfg.model.classifier_bias = "last", False
    cfg.model.update(with_decoder(family, TASK_KINDS.load(kind).head))
    cfg.objective.name, cfg.task.kind, cfg.task.from_scratch = "task", kind, True
    cfg.task.train = (write_examples(kind, folder),)
    cfg.task.batch_size, cfg.task.epochs, cfg.task.max_length = 8, 1.0, 48
    cfg.task.packing = False
    if kind in TEXT_LABELS:
        cfg.task.pair_column = "pair"
    if kind == "multiple_choice":
        cfg.task.multiple_choice.question_column = "question"
    if kind == "qa":
        cfg.task.qa.doc_stride, cfg.task.qa.max_question_length = 8, 20
    return cfg


def load(export: Path, auto_class: str) -> tuple[Any, Any]:
    """Returns model and tokenizer of `transformers`."""
    model, info = getattr(transformers, auto_class).from_pretrained(
        export, trust_remote_code=True, output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval(), exported_tokenizer(export)


def check_texts(kind: str, export: Path, records: list[dict[str, Any]]) -> None:
    model, tokenizer = load(export, "AutoModelForSequenceClassification")
    pairs = [(TEXTS[i], TEXTS[3 * i + 2]) for i in range(8)]
    with torch.no_grad():
        logits = [model(**tokenizer(*pair, return_tensors="pt")).logits[0] for pair in pairs]
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    of_pipe = [pipe({"text": text, "text_pair": pair}, top_k=None) for text, pair in pairs]
    if kind == "regression":
        scores = [record["score"] for record in records]
        np.testing.assert_allclose(scores, torch.stack(logits)[:, 0], atol=3e-5)
        np.testing.assert_allclose(scores, [each[0]["score"] for each in of_pipe], atol=3e-5)
        assert np.ptp(scores) > 1e-3
        return
    for record, each in zip(records, of_pipe, strict=True):
        assert record["probabilities"] == pytest.approx({item["label"]: item["score"] for item in each}, abs=3e-5)
        assert len(record["probabilities"]) == 3
    assert np.ptp([max(record["probabilities"].values()) for record in records]) > 1e-3
    if kind == "multilabel":  # no softmax: the pipeline reads problem_type
        assert any(abs(sum(record["probabilities"].values()) - 1.0) > 1e-2 for record in records)
        for record in records:
            assert record["labels"] == [name for name, each in record["probabilities"].items() if each >= 0.5]


def check_choices(export: Path, records: list[dict[str, Any]]) -> None:
    model, tokenizer = load(export, "AutoModelForMultipleChoice")
    for record, item in zip(records, inputs_of("multiple_choice"), strict=True):
        seconds = [f"{item['question'].strip()} {choice}" for choice in item["choices"]]
        encoded = tokenizer([item["context"]] * len(seconds), seconds, return_tensors="pt", padding=True)
        with torch.no_grad():
            logits = model(**{name: values[None] for name, values in encoded.items()}).logits[0]
        expected = logits.softmax(-1)
        np.testing.assert_allclose(record["probabilities"], expected, atol=3e-5)
        assert record["choice"] == int(expected.argmax()) and record["text"] == item["choices"][record["choice"]]
    assert np.ptp([record["score"] for record in records]) > 1e-4


def check_words(export: Path, records: list[dict[str, Any]]) -> None:
    model, tokenizer = load(export, "AutoModelForTokenClassification")
    pipe = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, device="cpu", ignore_labels=[]
    )
    for words, record in zip(WORDS, records, strict=True):
        assert record["words"] == words
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            best = model(**encoded).logits[0].softmax(-1).max(-1)
        first = [encoded.word_ids().index(number) for number in range(len(words))]
        labels = [model.config.id2label[int(best.indices[index])] for index in first]
        assert record["tags"] == labels
        np.testing.assert_allclose(record["tag_scores"], best.values[first], atol=3e-5)
        text = " ".join(words)
        by_start = {
            each["end"] - len(text[each["start"] : each["end"]].lstrip()): each for each in reversed(pipe(text))
        }
        begins = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
        of_words = [by_start[begin] for begin in begins]
        assert [each["entity"] for each in of_words] == labels
        np.testing.assert_allclose([each["score"] for each in of_words], record["tag_scores"], atol=3e-5)


def check_answers(export: Path, records: list[dict[str, Any]]) -> None:
    """`transformers` 5 has no pipeline for questions: the best span of its model is the answer."""
    model, tokenizer = load(export, "AutoModelForQuestionAnswering")
    for index, record in enumerate(records):
        question, context = TEXTS[index], TEXTS[3 * index + 2]
        contexts_first = tokenizer.padding_side == "left"  # as in run_qa.py
        pair = (context, question) if contexts_first else (question, context)
        encoded = tokenizer(*pair, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            output = model(**encoded)
        inside = np.array([sequence == (not contexts_first) for sequence in encoded.sequence_ids()])
        scores = output.start_logits[0].numpy()[:, None] + output.end_logits[0].numpy()[None, :]
        allowed = np.triu(inside[:, None] & inside[None, :]) & ~np.triu(np.ones_like(scores, bool), 30)
        first, last = np.unravel_index(np.where(allowed, scores, -np.inf).argmax(), scores.shape)
        assert record["score"] == pytest.approx(scores[first, last], abs=5e-5)
        assert record["answer"] == context[offsets[first][0] : offsets[last][1]].strip()


def inputs_of(kind: str) -> list[Any]:
    pairs = [(TEXTS[i], TEXTS[3 * i + 2]) for i in range(8)]
    if kind == "multiple_choice":
        return [{"context": text, "question": pair[:9], **choices_of(i)} for i, (text, pair) in enumerate(pairs)]
    return WORDS if kind == "tokens" else pairs


def results_of(record: dict[str, Any]) -> list[Any]:
    """Returns what is predicted, and scores without their last digits."""
    scores = [record.get("score"), *record.get("tag_scores", ())]
    return [
        record.get("label"),
        record.get("labels"),
        record.get("tags"),
        record.get("answer"),
        record.get("choice"),
        *(each and round(each, 3) for each in scores),
    ]


def check(family: str, kind: str, folder: Path, temperature: float = 1.0) -> None:
    cfg = task_config(family, kind, folder)
    if temperature != 1.0:
        cfg.task[kind].temperature = temperature
    run = bertjax.finetune(cfg, folder / "run")
    records = bertjax.predict(run.export, inputs_of(kind))
    if temperature != 1.0:  # which the last layer of the export holds
        of_run = bertjax.predict(run.workdir, inputs_of(kind))
        assert [results_of(each) for each in of_run] == [results_of(each) for each in records]
    assert len(records) == len(inputs_of(kind))
    exported = load_pretrained(run.export)
    plan = plan_export(exported.config, exported.heads)
    assert not exported.config.causal or plan.architecture in FAMILIES.load(family).last_token_classes
    assert exported.config.decoder_layers is None or plan.architecture in FAMILIES.load(family).decoder_classes
    if plan.sidecar_paths or family in AUTHORS_CODE:  # transformers cannot run the head, and the export says so
        assert plan.limitation
        of_run = bertjax.predict(run.workdir, inputs_of(kind))
        assert [results_of(each) for each in of_run] == [results_of(each) for each in records]
    elif kind == "tokens":
        check_words(run.export, records)
    elif kind == "qa":
        check_answers(run.export, records)
    elif kind == "multiple_choice":
        check_choices(run.export, records)
    else:
        check_texts(kind, run.export, records)


KINDS = [kind for kind in TASK_KINDS.builtin if not TASK_KINDS.load(kind).has_targets]
CELLS = list(itertools.product(MODELS, KINDS))


MODULES = list(dict.fromkeys(path.partition(":")[0] for path in MODELS.values()))
# Families of one module take the same kind: those with equal maths share what is compiled.
ONCE = [
    (family, KINDS[MODULES.index(path.partition(":")[0]) % len(KINDS)])
    for family, path in MODELS.items()
    if family not in OBJECTIVE_FAMILIES.values()
]


@pytest.mark.parametrize(("family", "kind"), ONCE)
def test_each_family(family: str, kind: str, tmp_path: Path) -> None:
    check(family, kind, tmp_path)


def test_no_kind_is_left_out() -> None:
    assert {kind for _, kind in ONCE} == set(KINDS)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("family", "teacher"), [("roberta", "xlnet"), ("modernbert", "deberta-v2"), ("albert", "bert")]
)
@pytest.mark.parametrize("kind", ["classification", "multilabel", "regression"])
def test_a_teacher_of_another_family(family: str, teacher: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "teacher").mkdir()
    taught_by = bertjax.finetune(task_config(teacher, kind, tmp_path / "teacher"), tmp_path / "teacher" / "run")
    cfg = task_config(family, kind, tmp_path)
    cfg.task.teacher, cfg.task.teacher_weight = str(taught_by.export), 1.0
    run = bertjax.finetune(cfg, tmp_path / "run")
    assert f"train/{kind}_teacher_loss" in (run.workdir / "metrics.jsonl").read_text()
    scores = np.load(run.workdir / "teacher_scores.npy")
    again = bertjax.predict(taught_by.export, inputs_of(kind))
    assert np.isfinite(scores).all() and scores.shape[1] == len(again[0].get("probabilities", [0]))


@pytest.mark.matrix
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_every_cell(family: str, kind: str, tmp_path: Path) -> None:
    check(family, kind, tmp_path, 0.25 if issubclass(TASK_KINDS.load(kind), CalibratedKind) else 1.0)
