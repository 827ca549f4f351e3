"""Splinter: the token that asks, of every example of a sequence; both of its classes, its tokenizer, refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from parity.compare import random_params, random_transformers_model
from parity.families.splinter import CASES
from round_trip_lab import assert_comes_back

import bertjax
from bertjax.config.defaults import base_config
from bertjax.config.model import EncoderConfig, encoder_config
from bertjax.config.presets import preset
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.models.heads import first_of_segments
from bertjax.models.model import bind

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CASE = CASES[1]
HEADS = ("question_answering",)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[QUESTION]", ".", "?", "who", "what", "a", "the", "cat", "sees"]
CONTEXT = "the cat sees a bird on the big road near the river"
WORDS += [word for word in CONTEXT.split() if word not in WORDS]


def test_the_first_chosen_position_of_each_segment() -> None:
    chosen = jnp.array([[0, 0, 1, 1, 0, 0, 1, 0, 1], [1, 0, 0, 0, 0, 0, 0, 0, 0]], bool)
    segments = jnp.array([[1, 1, 1, 1, 2, 2, 2, 3, 0], [0, 1, 1, 2, 2, 2, 9, 9, 9]], jnp.int32)
    result = first_of_segments(chosen, segments)
    assert result.tolist() == [[2, 2, 2, 2, 6, 6, 6, 7, 8], [0, 1, 1, 3, 3, 3, 6, 6, 6]]


def test_every_example_of_a_sequence_has_a_question_of_its_own() -> None:
    config = EncoderConfig(
        vocab_size=30, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=24, answer_head="question",
        question_token_id=5, max_position_embeddings=16,
    )  # fmt: skip
    model = bind(config, HEADS, random_params(config, HEADS))
    rows = [[2, 7, 5, 8, 9, 10], [2, 5, 11, 12], [2, 13, 14]]
    packed, segments = np.concatenate(rows)[None], np.repeat([1, 2, 3], [6, 4, 3])[None]
    positions = np.concatenate([np.arange(len(row)) for row in rows])[None]

    def answers(ids: np.ndarray, segments: np.ndarray, positions: np.ndarray) -> np.ndarray:
        inputs = [jnp.asarray(each, jnp.int32) for each in (ids, segments, positions)]
        hidden = model.encode(*inputs, jnp.zeros_like(inputs[0])).last_hidden_state
        return np.asarray(model.answer_logits(hidden, *inputs[:2]))[0]

    together = np.split(answers(packed, segments, positions), [6, 10])
    for row, scores in zip(rows, together, strict=True):
        alone = np.array([row])
        np.testing.assert_allclose(scores, answers(alone, np.ones_like(alone), np.arange(len(row))[None]), atol=2e-5)


def test_the_class_of_pretraining_has_the_same_head(tmp_path: Path) -> None:
    case = dataclasses.replace(CASE, config={**CASE.config, "question_token_id": 61})
    theirs = random_transformers_model(case, "SplinterForPreTraining")
    theirs.save_pretrained(tmp_path / "theirs")
    ids = np.random.default_rng(0).integers(5, 60, (2, 11))
    ids[0, 4] = ids[1, 7] = 61
    ours, _ = assert_comes_back(tmp_path / "theirs", architectures=["SplinterForQuestionAnswering"])
    assert ours.heads == HEADS
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids))
    out = ours(ids)
    np.testing.assert_allclose(out.start_logits, expected.start_logits[:, 0], atol=2e-5)
    np.testing.assert_allclose(out.end_logits, expected.end_logits[:, 0], atol=2e-5)


def test_a_published_layout_is_finetuned_and_answers_like_transformers(tmp_path: Path) -> None:
    """The tokenizer puts [QUESTION] and a full stop after the question; the head reads it there."""
    folder = tmp_path / "model"
    sizes = dict(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    config = transformers.SplinterConfig(**sizes, max_position_embeddings=160, question_token_id=5)
    torch.manual_seed(0)
    transformers.SplinterForQuestionAnswering(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "SplinterTokenizer"}))
    row = {"id": "1", "question": "what sees the cat?", "context": CONTEXT}
    answers = {"text": ["a bird"], "answer_start": [CONTEXT.index("a bird")]}
    (tmp_path / "train.jsonl").write_text(
        "".join(json.dumps(row | {"id": str(index), "answers": answers}) + "\n" for index in range(8))
    )
    cfg = base_config()
    cfg.platform, cfg.mesh.data, cfg.init_from = "cpu", 1, str(folder)
    cfg.report.enabled, cfg.logging.tensorboard = False, False
    cfg.objective.name, cfg.task.kind = "task", "qa"
    cfg.task.train, cfg.task.batch_size, cfg.task.epochs, cfg.task.max_length = (
        (f"jsonl:{tmp_path}/train.jsonl",),
        4,
        1.0,
        64,
    )
    cfg.task.qa.doc_stride, cfg.task.qa.max_question_length = 8, 20
    run = bertjax.finetune(cfg, tmp_path / "run")
    (record,) = bertjax.predict(run.export, [(row["question"], CONTEXT)])
    back = transformers.SplinterForQuestionAnswering.from_pretrained(run.export)
    assert back.config.question_token_id == 5
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.export)
    encoded = tokenizer(row["question"], CONTEXT, return_tensors="pt")
    assert encoded["input_ids"][0].tolist().count(5) == 1
    with torch.no_grad():
        out = back.eval()(**encoded)
    inside = np.array([sequence == 1 for sequence in encoded.sequence_ids()])
    scores = out.start_logits[0].numpy()[:, None] + out.end_logits[0].numpy()[None]
    assert record["score"] == pytest.approx(
        np.where(np.triu(inside[:, None] & inside[None]), scores, -np.inf).max(), abs=5e-5
    )


def test_the_token_is_that_of_the_tokenizer(tmp_path: Path) -> None:
    cfg = base_config()
    for words, expected in ((WORDS, 5), ([word for word in WORDS if word != "[QUESTION]"], None)):
        (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
        cfg.model.preset = "splinter-base"
        vocabulary = load_tokenizer(tmp_path / "vocab.txt").vocabulary()
        assert encoder_config(cfg, vocabulary).question_token_id == expected


def test_what_the_classes_hold() -> None:
    config = EncoderConfig(**preset("splinter-base"))
    assert plan_export(config, HEADS).unsupported == ("question_token_id",)
    assert plan_export(config, ()).architecture == "SplinterModel"
    config = dataclasses.replace(config, question_token_id=104)
    for heads, architecture in ((HEADS, "SplinterForQuestionAnswering"), ((), "SplinterModel")):
        plan = plan_export(config, heads)
        assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    plain = dataclasses.replace(config, answer_head="tokens")
    assert plan_export(plain, HEADS).unsupported == ("answer_head",)
    other = dataclasses.replace(config, family="bert", question_token_id=None)
    assert plan_export(other, HEADS).unsupported == ("answer_head",)
    with pytest.raises(UserError, match="only encoders are supported"):
        FAMILIES["splinter"].parse_config({"is_decoder": True})
