"""Defaults of a loaded model's arguments: positions, token types, lengths, the summary of a row."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.forward import check_inputs, run_model
from bertjax.hf.pretrained import PretrainedModel
from bertjax.models.model import abstract_params

SIZES: dict[str, Any] = dict(
    vocab_size=30, hidden_size=12, num_layers=2, num_heads=2, intermediate_size=20, max_position_embeddings=6
)
ROBERTA = EncoderConfig(**SIZES, position_offset=2, pad_token_id=1)
UNBOUND = EncoderConfig(**SIZES, position_embedding="none", attention_position="rotary", type_vocab_size=0)


def inputs(config: EncoderConfig, *arguments: Any, heads: tuple[str, ...] = ()) -> dict[str, list]:
    return {name: np.asarray(array).tolist() for name, array in check_inputs(config, heads, *arguments).items()}


def model(config: EncoderConfig, heads: tuple[str, ...]) -> PretrainedModel:
    draw = np.random.default_rng(0).standard_normal
    params = jax.tree.map(lambda leaf: draw(leaf.shape).astype(leaf.dtype), abstract_params(config, heads))
    return PretrainedModel(config, params, heads)


def test_positions_count_from_the_first_token() -> None:
    assert inputs(EncoderConfig(**SIZES), [[0, 0, 5]])["position_ids"] == [[0, 1, 2]]
    assert inputs(EncoderConfig(**SIZES), [[0, 0, 5]], None, None, [[5, 0, 5]])["position_ids"] == [[5, 0, 5]]


def test_positions_with_an_offset_count_tokens_that_are_not_padding() -> None:
    """Row = position + offset; padding reads row pad_id, as in transformers: create_position_ids_from_input_ids."""
    ids = [[7, 1, 8, 9], [1, 1, 4, 1]]
    assert inputs(ROBERTA, ids)["position_ids"] == [[0, -1, 1, 2], [-1, -1, 0, -1]]
    # explicit positions are rows of the table
    assert inputs(ROBERTA, ids[:1], None, None, [[2, 1, 7, 0]])["position_ids"] == [[0, -1, 5, -2]]
    with pytest.raises(UserError, match="position_ids holds 8; the model has ids 0 to 7"):
        inputs(ROBERTA, ids[:1], None, None, [[2, 1, 8, 0]])
    assert inputs(ROBERTA, [[5] * 6 + [1] * 4])["position_ids"] == [[*range(6), -1, -1, -1, -1]]
    with pytest.raises(UserError, match="a sequence has 7 tokens; the model has 6 positions"):
        inputs(ROBERTA, [[5] * 7 + [1] * 4])


def test_computed_positions_have_no_end() -> None:
    assert inputs(UNBOUND, [[5] * 40], None, [[3] * 40])["position_ids"] == [[*range(40)]]
    assert inputs(UNBOUND, [[5]], None, None, [[9000]])["position_ids"] == [[9000]]
    enhanced = EncoderConfig(**SIZES, position_embedding="none", enhanced_decoder=True)
    assert len(inputs(enhanced, [[5] * 40])["position_ids"][0]) == 40
    with pytest.raises(UserError, match="a sequence has 40 tokens"):  # its decoder has a table
        inputs(enhanced, [[5] * 40], heads=("mlm",))


def test_token_types_are_ignored_where_there_are_none() -> None:
    assert inputs(UNBOUND, [[5, 6]], None, [[0, 99]])["token_type_ids"] == [[0, 0]]
    position = dict(position_embedding="none", attention_position="relative", attention_bias="none", type_vocab_size=0)
    segments = EncoderConfig(**SIZES, **position, relative_segments=True)
    assert inputs(segments, [[5, 6, 7]], None, [[0, 2, 3]])["token_type_ids"] == [[0, 2, 3]]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("first", lambda x: x[:, 0]), ("last", lambda x: x[:, -1]), ("mean", None)],
)
def test_the_summary_of_a_row(pooling: str, expected: Any) -> None:
    heads = ("sequence_classification", "token_classification", "question_answering")
    config = EncoderConfig(**SIZES, pooling=pooling, classifier_dense="none", labels=("a", "b", "c"))
    loaded = model(config, heads)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    out = loaded([[5, 6, 7, 8], [9, 10, 0, 0]], attention_mask=mask)
    hidden = np.asarray(out.last_hidden_state)
    vectors = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True) if expected is None else expected(hidden)
    head = loaded.params["sequence_head"]["output"]
    np.testing.assert_allclose(out.sequence_logits, vectors @ head["kernel"] + head["bias"], atol=1e-5)
    assert out.logits is out.sequence_logits and out.token_logits.shape == (2, 4, 3)
    assert out.start_logits.shape == out.end_logits.shape == (2, 4) and out.pooler_output is None


def test_scores_of_replaced_tokens() -> None:
    out = model(EncoderConfig(**SIZES, rtd_head="summary"), ("rtd",))([[5, 6, 7]])
    assert out.rtd_logits.shape == (1, 3) and out.logits is out.rtd_logits and out.mlm_logits is None


@pytest.mark.parametrize("settings", [{}, {"first_attention_norm": False, "norm_placement": "pre"}, {"num_groups": 1}])
def test_layers_apart_compute_the_same(settings: dict[str, Any]) -> None:
    """With and without `split_stacks`; parameters that were replaced are read again."""
    loaded = model(EncoderConfig(**SIZES, **settings), ())
    loaded.params = jax.device_put(loaded.params)
    ids = [[5, 6, 7, 0]]
    stacked = run_model(loaded.config, (), loaded.params, check_inputs(loaded.config, (), ids)).last_hidden_state
    np.testing.assert_allclose(loaded(ids).last_hidden_state, stacked, atol=1e-6)
    layers = loaded.by_layer["encoder"].get("layers")
    assert isinstance(layers, tuple) == (not settings.get("num_groups")) and loaded.by_layer is loaded.by_layer
    table = loaded.params["encoder"]["embeddings"]["word_embeddings"]
    loaded.params["encoder"]["embeddings"]["word_embeddings"] = jax.tree.map(lambda leaf: 2 * leaf, table)
    assert np.abs(loaded(ids).last_hidden_state - stacked).max() > 1e-3
