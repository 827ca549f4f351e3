"""A student that starts as layers of its teacher."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.models.model import abstract_params
from bertjax.objectives.distillation.init_student import start_from_teacher
from bertjax.types import Params

BERT = EncoderConfig(
    vocab_size=50, hidden_size=8, num_layers=4, num_heads=2, intermediate_size=12, max_position_embeddings=10
)
HEADS = ("pooler", "mlm", "pair")


def drawn(config: EncoderConfig, heads: tuple[str, ...], seed: int) -> Params:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), abstract_params(config, heads))


def test_distilbert_starts_as_some_of_berts_layers() -> None:
    """No token types, fewer positions, no pooler; the span-boundary head has no source and stays as it is drawn."""
    student = dataclasses.replace(BERT, num_layers=2, type_vocab_size=0, max_position_embeddings=7, family="distilbert")
    teacher_params, fresh = drawn(BERT, HEADS, 0), drawn(student, ("mlm", "span_boundary"), 1)
    fresh["projection"] = {"kernel": np.ones((8, 8), np.float32)}
    result = start_from_teacher(student, fresh, BERT, teacher_params, (1, 3))
    assert jax.tree.structure(result) == jax.tree.structure(fresh)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_array_equal(ours, theirs[[1, 3]]),
        result["encoder"]["layers"],
        teacher_params["encoder"]["layers"],
    )
    tables = result["encoder"]["embeddings"], teacher_params["encoder"]["embeddings"]
    assert set(tables[0]) == {"word_embeddings", "position_embeddings", "norm"}
    np.testing.assert_array_equal(*(side["word_embeddings"]["embedding"] for side in tables))
    np.testing.assert_array_equal(
        tables[0]["position_embeddings"]["embedding"], tables[1]["position_embeddings"]["embedding"][:7]
    )
    jax.tree.map(np.testing.assert_array_equal, result["mlm_head"], teacher_params["mlm_head"])
    jax.tree.map(np.testing.assert_array_equal, result["span_head"], fresh["span_head"])
    np.testing.assert_array_equal(result["projection"]["kernel"], 1.0)


def test_layers_that_share_parameters_stand_for_themselves() -> None:
    """ALBERT's groups as a teacher, and as a student: a group starts as the source of its first layer."""
    shared = dataclasses.replace(BERT, num_groups=2)
    plain = dataclasses.replace(BERT, num_layers=3)
    teacher_params = drawn(shared, (), 0)
    result = start_from_teacher(plain, drawn(plain, (), 1), shared, teacher_params, (0, 1, 3))
    query = teacher_params["encoder"]["groups"]["layers"]["attention"]["query"]["kernel"]
    assert query.shape == (2, 1, 8, 8)
    np.testing.assert_array_equal(result["encoder"]["layers"]["attention"]["query"]["kernel"], query[[0, 0, 1], 0])
    back = start_from_teacher(shared, drawn(shared, (), 2), plain, result, (2, 1, 0, 1))
    kernel = back["encoder"]["groups"]["layers"]["attention"]["query"]["kernel"]
    np.testing.assert_array_equal(kernel[:, 0], query[[1, 0], 0])  # layers 0 and 2 open the groups: as 2 and 0


def test_norms_that_lie_apart_go_with_their_layers() -> None:
    """ModernBERT: the first layer's attention has no norm, so only the bottom layer of a student can have it."""
    modern = dataclasses.replace(BERT, norm_placement="pre", first_attention_norm=False)
    student = dataclasses.replace(modern, num_layers=3)
    teacher_params, fresh = drawn(modern, (), 0), drawn(student, (), 1)
    result = start_from_teacher(student, fresh, modern, teacher_params, (2, 1, 3))
    theirs = teacher_params["encoder"]["attention_norms"]["layers"]["scale"]
    assert theirs.shape == (3, 8)
    np.testing.assert_array_equal(result["encoder"]["attention_norms"]["layers"]["scale"], theirs[[0, 2]])
    with pytest.raises(UserError, match=r"the teacher has no encoder/layers/0/attention/norm"):
        start_from_teacher(student, fresh, modern, teacher_params, (1, 0, 3))


@pytest.mark.parametrize(
    ("changes", "layers", "message"),
    [
        ({"num_heads": 4}, (0, 1), "num_heads is 4 here, 2 there"),
        ({"norm_placement": "pre"}, (0, 1), "norm_placement is pre here, post there"),
        (
            {"intermediate_size": 16},
            (0, 1),
            r"intermediate/bias has shape \[12\] in the teacher, \[16\] in the student",
        ),
        ({"feed_forward": "glu"}, (0, 1), r"the teacher has no encoder/layers/0/feed_forward/gate"),
        ({"max_position_embeddings": 11}, (0, 1), r"position_embeddings/embedding has shape \[10, 8\]"),
        ({}, (0, 4), "layers 0 to 3, not 4"),
        ({"num_groups": 1, "inner_layers": 2}, (0, 1), "needs inner_layers=1"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict, layers: tuple[int, ...], message: str) -> None:
    student = dataclasses.replace(BERT, num_layers=2, **changes)
    with pytest.raises(UserError, match=message):
        start_from_teacher(student, drawn(student, (), 1), BERT, drawn(BERT, (), 0), layers)
