"""Model cards state the known facts of a run and of its kind of training, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ml_collections import ConfigDict

from bertjax.config.defaults import base_config
from bertjax.config.model import EncoderConfig
from bertjax.experiment.load import StoredRun
from bertjax.experiment.model_card_facts import model_facts, name_base_model
from bertjax.hf.export_plan import plan_export
from bertjax.hf.model_card import MARKER, render_model_card

CONFIG = EncoderConfig(
    vocab_size=30, hidden_size=12, num_layers=2, num_heads=2, intermediate_size=20, max_position_embeddings=10
)
TOKENIZER: Any = SimpleNamespace(kind="wordpiece", size=30)
HEADS = {
    "mlm": ("pooler", "mlm", "pair"),
    "classification": ("pooler", "sequence_classification"),
    "regression": ("pooler", "sequence_classification"),
    "tokens": ("token_classification",),
    "qa": ("question_answering",),
}
METRICS = {
    "classification": {"eval/accuracy": 0.9125, "eval/loss": 0.31, "eval/f1/positive": 0.8},
    "regression": {"eval/pearson": 0.8871},
    "tokens": {"eval/f1": 0.9, "eval/precision": 0.91},
    "qa": {"eval/f1": 0.77, "eval/exact_match": float("nan")},
}


def config_of(kind: str) -> ConfigDict:
    cfg = base_config()
    if kind != "mlm":
        cfg.objective.name, cfg.task.kind, cfg.init_from = "task", kind, "runs/tiny-bert/export"
        source = {"tokens": "conll:train.txt", "qa": "squad:train.json"}.get(kind, "tsv:train.tsv")
        cfg.task.max_length = 384
        cfg.task.train, cfg.task.eval = (source,), (source.replace("train", "dev"),)
    return cfg


def run_of(cfg: ConfigDict, step: int, meta: dict[str, Any]) -> StoredRun:
    experiment: Any = SimpleNamespace(cfg=cfg)
    return StoredRun(experiment, TOKENIZER, {}, step, meta, (step,))


def card_of(kind: str, labels: tuple[str, ...] = ("negative", "positive")) -> tuple[dict[str, Any], str]:
    meta = {"tokens": 123_456, "examples": None if kind == "mlm" else {"train": 6_000, "eval": 500}}
    metrics = METRICS.get(kind, {"eval/mlm_loss": 3.25, "eval/mlm_accuracy": 0.5, "eval/padding": 0.1})
    facts = model_facts(run_of(config_of(kind), 40, meta), metrics, labels)
    card = render_model_card(plan_export(CONFIG, HEADS[kind]), 1234, facts)
    return yaml.safe_load(card.split("---")[1]), card


def test_a_pretrained_model() -> None:
    front, card = card_of("mlm")
    assert front["library_name"] == "transformers" and front["pipeline_tag"] == "fill-mask"
    assert "pretraining" in front["tags"] and "metrics" not in front and "base_model" not in front
    for text in ("builtin:python-docs (123,456 tokens)", "mlm_loss | 3.2500", "| Parameters | 1,234 |", MARKER):
        assert text in card
    assert "masked language modeling" in card and "most tasks need finetuning" in card and "padding" not in card
    assert "Task" not in card and "Labels" not in card and "None" not in card


@pytest.mark.parametrize(
    ("kind", "title", "pipeline"),
    [
        ("classification", "classification", "text-classification"),
        ("regression", "regression", "text-classification"),
        ("tokens", "token classification", "token-classification"),
        ("qa", "extractive question answering", "question-answering"),
    ],
)
def test_a_finetuned_model(kind: str, title: str, pipeline: str) -> None:
    front, card = card_of(kind)
    assert front["pipeline_tag"] == pipeline and "base_model" not in front
    assert "finetuning" in front["tags"] and "pretraining" not in front["tags"]
    assert f"finetuned from `tiny-bert` for {title} with bertjax" in card
    train, dev = config_of(kind).task.train[0], config_of(kind).task.eval[0]
    for row in (
        "| Base model | tiny-bert |",
        f"| Task | {title} |",
        f"| Training data | {train} (6,000 examples) |",
        f"| Evaluation data | {dev} (500 examples) |",
        "| Epochs | 3.0 |",
        "| Steps | 40 |",
        "| Batch size | 32 |",
        "| Seed | 0 |",
    ):
        assert row in card, row
    assert ("| Labels | negative, positive |" in card) == (kind in ("classification", "tokens"))
    main = {"classification": "accuracy", "regression": "pearson"}.get(kind, "f1")
    assert f"checkpoints are compared by {main}" in card and main in front["metrics"]
    for words in ("python-docs", "pretrained with", "held-out text", "Tokens seen", "positive |\n| f1", "nan", "None"):
        assert words not in card, words


def test_scores_of_single_labels_and_without_a_value_are_left_out() -> None:
    assert "accuracy | 0.9125" in card_of("classification")[1] and "f1/positive" not in card_of("classification")[1]
    assert "exact_match" not in card_of("qa")[1]


def test_without_evaluation_data_the_card_has_no_scores() -> None:
    cfg = config_of("classification")
    cfg.task.eval = ()
    facts = model_facts(run_of(cfg, 2, {"tokens": 1}), {})
    card = render_model_card(plan_export(CONFIG, HEADS["classification"]), 1, facts)
    assert "## Evaluation" not in card and "Evaluation data" not in card and "compared by" not in card


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("runs/bert/export", "bert"),
        ("~/models/bert-base-uncased/", "bert-base-uncased"),
        ("/cache/hub/models--google--electra-small/snapshots/0123abcd", "google/electra-small"),
        ("export", "export"),
    ],
)
def test_the_base_model_is_named_without_its_path(folder: str, name: str) -> None:
    assert name_base_model(folder) == name


def test_a_base_model_of_the_hub_is_linked() -> None:
    cards = {
        name: render_model_card(plan_export(CONFIG, ("mlm",)), 1, {"base_model": name})
        for name in ("tiny-bert", "google/electra-small")
    }
    fronts = {name: yaml.safe_load(card.split("---")[1]) for name, card in cards.items()}
    assert fronts["google/electra-small"]["base_model"] == "google/electra-small"
    assert "base_model" not in fronts["tiny-bert"] and "| Base model | tiny-bert |" in cards["tiny-bert"]


def test_names_and_labels_are_text_and_no_markup() -> None:
    labels = ("<script>alert(1)</script>", "a|b", "![x](http://y)", "R&D", "*`_")
    _, card = card_of("classification", labels)
    shown = r"&lt;script&gt;alert(1)&lt;/script&gt;, a\|b, !\[x\](http://y), R&amp;D, \*\`_"
    assert f"| Labels | {shown} |" in card
    cfg = config_of("classification")
    cfg.init_from = "runs/<img src=x>`<b>/export"
    cfg.task.train = ("tsv:</td><h1>.tsv",)
    facts = model_facts(run_of(cfg, 40, {"tokens": 1}), {})
    card = render_model_card(plan_export(CONFIG, HEADS["classification"]), 1, facts)
    assert "finetuned from `<img src=x>'<b>` for" in card and "| Base model | &lt;img src=x&gt;\\`&lt;b&gt; |" in card
    assert "<h1>" not in card and "`<b>" not in card.replace("\\`", "")


def test_nothing_is_invented() -> None:
    card = render_model_card(plan_export(CONFIG, ("pooler",)), 1, None)
    front = yaml.safe_load(card.split("---")[1])
    assert "language" not in front and "pipeline_tag" not in front
    assert "Training" not in card and "Evaluation" not in card and "None" not in card
    with pytest.raises(ValueError, match="stepps"):
        render_model_card(plan_export(CONFIG, ("pooler",)), 1, {"stepps": 3})
    assert 'language: "en"' in render_model_card(plan_export(CONFIG, ("pooler",)), 1, {"language": "en"})


def test_positions_that_were_never_trained_are_named() -> None:
    cards = {length: render_model_card(plan_export(CONFIG, ("mlm",)), 1, {"seq_len": length}) for length in (8, 10)}
    assert "sequences of 8 tokens: the embeddings of later positions are untrained" in cards[8]
    assert "later positions" not in cards[10]
