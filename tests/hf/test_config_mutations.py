"""Random changes of config.json: bertjax and `transformers` agree, or both refuse, or bertjax refuses with a reason."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from config_lab import (
    ABSENT,
    Subject,
    Values,
    build,
    disagreement,
    draw_changes,
    groups_of_changes,
    misread,
    subjects,
)

from bertjax.errors import UserError
from bertjax.hf.pretrained import load_pretrained

DRAWS, LONG_DRAWS, RUNS = 3, 80, 1
SUBJECTS = subjects()


@pytest.fixture(params=list(SUBJECTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


def misread_draws(subject: Subject, draw: random.Random, count: int) -> list[str]:
    result = []
    for _ in range(count):
        changes = draw_changes(subject, draw)
        values = subject.changed(changes, draw.choice(list(subject.family.architectures)))
        if problem := disagreement(subject, values):
            result.append(f"{changes}: {problem}")
    return result


def test_random_changes(subject: Subject) -> None:
    assert not misread_draws(subject, random.Random(15), DRAWS)


@pytest.mark.weekly
def test_many_random_changes(subject: Subject) -> None:
    assert not misread_draws(subject, random.Random(16), LONG_DRAWS)


@pytest.mark.weekly
def test_every_key_with_every_value(subject: Subject) -> None:
    groups = list(groups_of_changes(subject))
    count = sum(len(subject.candidates(key)) for key in subject.keys)
    assert sum(map(len, groups)) == count and len(groups) < count
    assert not [problem for changes in groups for problem in misread(subject, changes)]


@pytest.mark.weekly
def test_changed_models_run(subject: Subject, tmp_path: Path) -> None:
    """Both read the file unchanged, and give the same numbers."""
    draw, runs = random.Random(17), 0
    architecture = list(subject.family.architectures)[-1]
    while runs < RUNS:
        values = subject.changed(draw_changes(subject, draw), architecture)
        folder = tmp_path / f"{draw.random()}"
        try:
            model = build(subject, values).float().eval()
            model.save_pretrained(folder)
            (folder / "config.json").write_text(json.dumps(values))
            ids = torch.arange(12).reshape(2, 6) % (model.config.vocab_size - 9) + 9
            with torch.no_grad():
                expected = model(ids).last_hidden_state.numpy()
        except Exception:
            continue
        try:
            actual = np.asarray(load_pretrained(folder)(ids.numpy()).last_hidden_state)
        except UserError:
            continue
        runs += 1
        np.testing.assert_allclose(
            actual, expected, atol=2e-4 if expected.shape[-1] <= 1024 else 5e-4, err_msg=f"{values}"
        )


@pytest.mark.parametrize(
    ("family", "changes", "field", "expected"),
    [
        ("gpt2", {"num_attention_heads": 9}, "num_heads", 9),
        ("gpt2", {"hidden_size": 30, "num_hidden_layers": 2, "max_position_embeddings": 9}, "num_layers", 2),
        ("gpt2", {"classifier_dropout": 0.4}, "classifier_dropout", 0.4),
        ("distilbert", {"n_heads": 3, "num_attention_heads": 6}, "num_heads", 6),
        ("xlnet", {"n_token": 17}, "vocab_size", 17),
        ("modernbert", {"sliding_window": 2}, "local_attention", 4),
        ("bert", {"pad_token_id": None}, "pad_token_id", 0),
    ],
)
def test_other_names_of_keys_count(family: str, changes: Values, field: str, expected: Any) -> None:
    subject = SUBJECTS[family]
    values = subject.changed(changes)
    assert getattr(subject.family.parse_config(values), field) == expected
    assert not disagreement(subject, values)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("modernbert", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}, "rope_parameters = .*tables"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
            "partial_rotary_factor",
        ),
        ("modernbert", {"head_dim": 4}, "head_dim = 4"),
        ("modernbert", {"pad_token_id": ABSENT}, "pad_token_id 50283 is beyond vocab_size 97"),
        ("gpt2", {"is_causal": False}, "is_causal"),
        ("gpt2", {"is_decoder": True}, "is_decoder"),
        ("bert", {"per_layer_config": {"0": {"intermediate_size": 12}}}, "per_layer_config"),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("bert", {"num_labels": 3, "id2label": {"0": "a", "1": "b"}}, "num_labels = 3, but id2label names 2"),
        ("bert", {"hidden_size": None}, "hidden_size must be a whole number, not None"),
        ("roberta", {"pad_token_id": None}, "pad_token_id = null"),
        ("deberta", {"embedding_size": 0}, "embedding_size must"),
        ("xlnet", {"max_position_embeddings": 512}, "max_position_embeddings"),
    ],
)
def test_refusals(family: str, changes: Values, message: str) -> None:
    subject = SUBJECTS[family]
    with pytest.raises(UserError, match=message):
        subject.family.parse_config(subject.changed(changes))


def test_unknown_keys_are_named(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bertjax"):
        config = subject.family.parse_config(subject.changed({}))
        for architecture in subject.family.architectures:
            subject.family.parse_config(subject.family.render_config(config, architecture))
        assert not caplog.messages
        subject.family.parse_config(subject.changed({"rope_tetha": 3.0, "no_key": 1}))
    assert caplog.messages == ["config.json: keys that bertjax does not know are ignored: no_key, rope_tetha"]


def test_keys_that_change_training_alone_are_named(caplog: pytest.LogCaptureFixture) -> None:
    SUBJECTS["deberta"].family.parse_config(SUBJECTS["deberta"].changed({"pooler_dropout": 0.3}))
    assert ["pooler_dropout = 0.3 is ignored" in each for each in caplog.messages] == [True]
