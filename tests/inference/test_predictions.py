"""Predictions of a finetuned model compared with `transformers` on the same folder: probabilities, tags, answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models_lab import MODELS, quick_compilation
from parity.cases import Case
from parity.compare import random_transformers_model
from tokens_lab import sentences, trained

from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer
from bertjax.errors import UserError
from bertjax.hf.pretrained import load_pretrained
from bertjax.inference.predict import Predictor, infer_task_kind, make_task_config
from bertjax.inference.predict_inputs import read_inputs, split_words
from bertjax.tasks.qa import QuestionAnswering, _answer_record
from bertjax.tasks.qa_answers import AnswerSpan, PredictedAnswer

TEXTS = [*sentences(9, seed=5, longest=30), "The cat", "naïve 北京 cafés"]
PAIRS = TEXTS[::-1]
LONGEST = 24
TAGS = ("O", "B-PER", "I-PER", "B-LOC")


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def write_folder(
    folder: Path, head: str, labels: tuple[str, ...] = ("no", "yes", "maybe"), family: str = "bert"
) -> Any:
    """Writes a model of `transformers` with a head for a task, and its tokenizer, to `folder`; returns both."""
    from transformers import AutoTokenizer

    tokenizer = trained(family)
    config_class, _, keys = MODELS[family]
    named = {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    sizes = {"vocab_size": tokenizer.size, "pad_token_id": tokenizer.pad_id}
    stem = config_class.removesuffix("Config")
    case = Case(family, "of a task", config_class, sizes | keys | named, (f"{stem}For{head}",))
    model = random_transformers_model(case, case.classes[0], seed=4)
    model.save_pretrained(folder)
    save_huggingface_tokenizer(tokenizer, folder, max_length=120)
    return model, AutoTokenizer.from_pretrained(folder)


def predictor(folder: Path, tokens: int = 200, **wishes: Any) -> Predictor:
    model, tokenizer = load_pretrained(folder), load_tokenizer(folder)
    return Predictor(model, tokenizer, make_task_config(model, infer_task_kind(model), **wishes), tokens)


def ask(model: Predictor, path: Path, records: list[dict[str, Any]], window: int = 4) -> list[dict[str, Any]]:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [record for part in read_inputs(model.config, [str(path)], window=window) for record in model(part).records]


def softmax(scores: torch.Tensor) -> np.ndarray:
    return torch.softmax(scores.double(), -1).numpy()


def test_probabilities_as_transformers(tmp_path: Path) -> None:
    """Single and paired texts, truncated; in the order of the input although batches are sorted by length."""
    model, tokenizer = write_folder(tmp_path, "SequenceClassification")
    for pairs in (None, PAIRS):
        ours = predictor(tmp_path, max_length=LONGEST, pair_column="pair" if pairs else None)
        records: list[dict[str, Any]] = [{"id": f"n{i}", "text": text} for i, text in enumerate(TEXTS)]
        for index, pair in enumerate(pairs or ()):
            records[index]["pair"] = pair
        result = ask(ours, tmp_path / "in.jsonl", records)
        assert [each["id"] for each in result] == [f"n{i}" for i in range(len(TEXTS))]
        assert ours.num_truncated > 0
        for index, (each, text) in enumerate(zip(result, TEXTS, strict=True)):
            second = pairs[index] if pairs else None
            encoded = tokenizer(text, second, return_tensors="pt", truncation="longest_first", max_length=LONGEST)
            with torch.no_grad():
                expected = softmax(model(**encoded).logits[0])
            np.testing.assert_allclose(list(each["probabilities"].values()), expected, atol=1e-5)
            assert list(each["probabilities"]) == ["no", "yes", "maybe"]
            assert each["label"] == ("no", "yes", "maybe")[expected.argmax()] and each["score"] == max(
                each["probabilities"].values()
            )


def test_tags_of_words_as_transformers(tmp_path: Path) -> None:
    model, tokenizer = write_folder(tmp_path, "TokenClassification", TAGS)
    words = [text.split() or ["a"] for text in TEXTS]
    ours = predictor(tmp_path, max_length=LONGEST)
    result = ask(ours, tmp_path / "in.jsonl", [{"words": each} for each in words])
    assert ours.num_truncated_words > 0
    kinds = set()
    for each, sentence in zip(result, words, strict=True):
        encoded = tokenizer(
            sentence, is_split_into_words=True, return_tensors="pt", truncation=True, max_length=LONGEST
        )
        with torch.no_grad():
            shares = softmax(model(**encoded).logits[0])
        tags, scores = ["O"] * len(sentence), [0.0] * len(sentence)
        for position, word in reversed(list(enumerate(encoded.word_ids()))):
            if word is not None:
                tags[word], scores[word] = TAGS[shares[position].argmax()], shares[position].max()
        assert each["tags"] == tags and each["words"] == sentence
        np.testing.assert_allclose(each["tag_scores"], scores, atol=1e-5)
        kinds |= {entity["entity"] for entity in each["entities"]}
        for entity in each["entities"]:
            assert entity["text"] == " ".join(sentence[entity["first"] : entity["last"] + 1])
    assert kinds == {"PER", "LOC"}


def test_entities_of_a_text_have_their_characters(tmp_path: Path) -> None:
    write_folder(tmp_path, "TokenClassification", TAGS)
    ours = predictor(tmp_path)
    text = "  The cat's (hungry) dog,  and cats in 北京."
    (result,) = ask(ours, tmp_path / "in.jsonl", [{"text": text}])
    assert result["words"] == ["The", "cat", "'s", "(", "hungry", ")", "dog", ",", "and", "cats", "in", "北", "京", "."]
    assert [text[begin:end] for begin, end in result["spans"]] == result["words"]
    assert result["entities"]
    for entity in result["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"] and "first" not in entity
    (of_words,) = ask(ours, tmp_path / "in.jsonl", [{"words": result["words"]}])
    assert of_words["tags"] == result["tags"]


def test_words_stay_together() -> None:
    words = split_words("U.S. state-of-the-art, $3.5 in Smith's café e.g. 你好ab").words
    assert words == [
        *["U.S", ".", "state-of-the-art", ",", "$", "3.5", "in", "Smith", "'s", "café", "e.g", "."],
        *["你", "好", "ab"],
    ]
    assert split_words("राम दिल्ली में रहता है।").words == ["राम", "दिल्ली", "में", "रहता", "है", "।"]


def test_answers_as_transformers(tmp_path: Path) -> None:
    """In one window, the best pair of positions in the context, as characters; in several, the text at them."""
    model, tokenizer = write_folder(tmp_path, "QuestionAnswering", ("LABEL_0", "LABEL_1"))
    context, question = "  The cat sat on a mat while seventeen hungry dogs looked over the fence .", "who sat ?"
    record = {"id": 7, "question": question, "context": context}
    (result,) = ask(predictor(tmp_path, max_length=100), tmp_path / "in.jsonl", [record])
    encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    spans, inside = encoded.pop("offset_mapping")[0].tolist(), [each == 1 for each in encoded.sequence_ids(0)]
    with torch.no_grad():
        out = model(**encoded)
    start, end = out.start_logits[0].numpy(), out.end_logits[0].numpy()
    pairs = [
        (start[i] + end[j], i, j)
        for i in range(len(start))
        for j in range(i, min(i + 30, len(end)))
        if inside[i] and inside[j]
    ]
    score, first, last = max(pairs)
    assert (result["id"], result["start"], result["end"]) == (7, spans[first][0], spans[last][1])
    assert result["answer"] == context[result["start"] : result["end"]] and result["score"] == pytest.approx(
        score, abs=1e-5
    )
    assert len(result["best"]) == 5 and result["best"][0] == {
        k: v for k, v in result.items() if k not in ("id", "best")
    }
    long = [record, {"id": "b", "question": question, "context": " ".join(TEXTS)}]
    several = ask(predictor(tmp_path, max_length=48, allow_no_answer=True), tmp_path / "in.jsonl", long)
    for each, single in zip(several, long, strict=True):
        assert each["id"] == single["id"] and isinstance(each["null_score_diff"], float)
        for span in each["best"]:
            if span["answer"]:
                assert span["answer"] == single["context"][span["start"] : span["end"]]
            else:
                assert span["start"] is None


def test_numbers_go_on_over_windows_and_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n\nc\n")
    (tmp_path / "b.jsonl").write_text('{"text": "d"}\n{"text": "e", "id": "mine"}\n{"text": "f"}\n')
    config = TaskConfig("classification", ("jsonl:-",))
    result = list(read_inputs(config, [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")], window=2))
    assert [part.ids for part in result] == [[0, 1], [2, 3], ["mine", 5]]
    assert [text for part in result for text in part.examples.texts] == ["a", "", "c", "d", "e", "f"]  # type: ignore[union-attr]
    assert result[2].examples.locations[0] == f"{tmp_path}/b.jsonl:2"


def test_positions_of_an_answer_leave_out_the_spaces_around_it() -> None:
    """For tokenizers whose tokens include the space before a word."""
    answer = PredictedAnswer("q", "cat", [AnswerSpan("", 0, 0, 2.0, 0.7), AnswerSpan("cat", 3, 8, 1.5, 0.3)], -np.inf)
    record = _answer_record(answer, "The cat sat", 1)
    assert record == {
        **{"answer": "cat", "start": 4, "end": 7, "score": 1.5, "probability": 0.3},
        "best": [{"answer": "", "start": None, "end": None, "score": 2.0, "probability": 0.7}],
        "null_score_diff": None,
    }


@pytest.mark.parametrize(
    "trained", [None, TaskConfig("qa", ("jsonl:a",), max_length=384, spec=QuestionAnswering(n_best_size=7))]
)
def test_short_windows_leave_tokens_for_the_context(trained: TaskConfig | None, tmp_path: Path) -> None:
    write_folder(tmp_path, "QuestionAnswering", ("LABEL_0", "LABEL_1"))
    model = load_pretrained(tmp_path)
    short, usual = make_task_config(model, "qa", trained, max_length=40), make_task_config(model, "qa", trained)
    assert (short.max_length, short.spec.doc_stride, short.spec.max_question_length) == (40, 13, 10)
    assert (usual.max_length, usual.spec.doc_stride, usual.spec.max_question_length) == (384, 128, 64)
    assert usual.spec.n_best_size == short.spec.n_best_size == (7 if trained else 20)


def test_which_task_a_model_is_for(tmp_path: Path) -> None:
    write_folder(tmp_path, "SequenceClassification")
    model = load_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"^kind qa: the model has no such head \(it has pooler, sequence"):
        infer_task_kind(model, "qa")
    with pytest.raises(UserError, match="the head has 3 labels, a number needs one"):
        infer_task_kind(model, "regression")
    with pytest.raises(UserError, match=r"^max_length=5000 is beyond the 512"):
        make_task_config(model, "classification", max_length=5000)
    model.heads = ("pooler", "sequence_classification", "token_classification")
    with pytest.raises(UserError, match="heads of several tasks; choose one with kind"):
        infer_task_kind(model)
    assert infer_task_kind(model, "tokens") == "tokens"
    model.heads = ("pooler",)
    with pytest.raises(UserError, match=r"the model has no task .*finetune it first"):
        infer_task_kind(model)
