"""MobileBERT: folders in both directions, what the parts compute, cost and rule out, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from round_trip_lab import assert_comes_back

from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.errors import UserError
from bertjax.experiment.growth import _require_growth
from bertjax.experiment.shrink import smaller_config
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.models.embeddings import neighbors
from bertjax.models.model import abstract_params, bind, count_params, init_params
from bertjax.training.flops import flops_per_token

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILY = FAMILIES["mobilebert"]
SIZES = dict(
    vocab_size=50, hidden_size=16, embedding_size=6, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
    intra_bottleneck_size=8, num_feedforward_networks=3,
)  # fmt: skip
NARROW = EncoderConfig(
    vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=20, bottleneck_size=8,
    num_feedforward_networks=3, embedding_size=6, embedding_ngram=3, embedding_norm="after", norm_type="affine",
    output_embedding_size=16,
)  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"classifier_activation": False}])
def test_a_folder_comes_back_byte_for_byte(tmp_path: Path, changes: dict[str, bool]) -> None:
    torch.manual_seed(0)
    config = transformers.MobileBertConfig(**SIZES, **changes)
    transformers.MobileBertForPreTraining(config).save_pretrained(tmp_path / "theirs")
    model, _ = assert_comes_back(tmp_path / "theirs")
    layers = model.params["encoder"]["layers"]
    assert layers["attention"]["value"]["kernel"].shape == (2, 16, 8)
    assert layers["attention"]["key"]["kernel"].shape == (2, 8, 8)
    assert model.params["mlm_head"]["further_table"].shape == (50, 10)


def test_operations_are_those_of_the_matrices() -> None:
    for config in (NARROW, dataclasses.replace(NARROW, use_bottleneck_attention=True)):
        leaves = jax.tree_util.tree_leaves_with_path(abstract_params(config, ("mlm",)))
        kernels = [leaf.size for path, leaf in leaves if path[-1].key in ("kernel", "further_table")]
        expected = 6 * (sum(kernels) + 50 * 6) + 12 * 2 * 4 * 2  # the word table is read again; scores of one key
        assert flops_per_token(config, 1.0, 1.0) == expected


def test_neighbors_are_of_the_same_example() -> None:
    x = jnp.arange(1.0, 7.0)[None, :, None]
    before, itself, after = (np.asarray(each)[0, :, 0] for each in neighbors(x, jnp.asarray([[1, 1, 2, 2, 2, 0]]), 3))
    assert before.tolist() == [0, 1, 0, 3, 4, 0]
    assert itself.tolist() == [1, 2, 3, 4, 5, 6]
    assert after.tolist() == [2, 0, 4, 5, 0, 0]


def test_every_block_and_end_drops_out_by_itself() -> None:
    def states(config: EncoderConfig, key: jax.Array | None) -> np.ndarray:
        ids = jnp.arange(6)[None]
        model = bind(config, (), init_params(config, (), jax.random.key(0)))
        encoded = model.encode(ids, jnp.ones_like(ids), ids, jnp.zeros_like(ids), key=key)
        return np.asarray(encoded.last_hidden_state)

    rates = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "initializer_range": 0.3}
    still = dataclasses.replace(NARROW, num_layers=1, **rates)
    np.testing.assert_array_equal(states(still, jax.random.key(1)), states(still, None))
    without = {f"{part}_dropout": 0.0 for part in ("embedding", "attention_output", "feed_forward")}
    for rate in ("hidden", "feed_forward"):
        dropping = dataclasses.replace(still, **without | {f"{rate}_dropout": 0.5})
        assert not np.array_equal(states(dropping, jax.random.key(1)), states(still, None))


def test_neither_widths_nor_inner_units_change() -> None:
    assert smaller_config(NARROW, 1, {}).num_layers == 1
    with pytest.raises(UserError, match="intermediate_size cannot be pruned: with num_feedforward_networks=3 each has"):
        smaller_config(NARROW, 2, {"intermediate_size": 10})
    _require_growth(NARROW, dataclasses.replace(NARROW, num_layers=4), "tile")
    plain = dataclasses.replace(NARROW, bottleneck_size=None, head_size=4)
    for config, key in (
        (NARROW, "bottleneck_size"),
        (plain, "embedding_ngram"),
        (dataclasses.replace(plain, embedding_ngram=None), "output_embedding_size"),
    ):
        with pytest.raises(UserError, match=f"with {key} only num_layers can grow"):
            _require_growth(config, dataclasses.replace(config, hidden_size=32, output_embedding_size=32), "tile")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_placement": "pre"}, "bottleneck_size=8 needs norm_placement=post, not pre"),
        ({"norm_placement": "pre", "bottleneck_size": None}, "num_feedforward_networks=3 needs norm_placement=post"),
        ({"attention_position": "disentangled"}, "the embeddings of distances have the hidden size"),
        ({"adapter_size": 4}, "bottleneck_size and adapter_size: that block has the hidden size"),
        ({"bottleneck_size": 7}, "model.bottleneck_size 7 is not divisible by model.num_heads 2"),
        ({"embedding_ngram": 2}, "embedding_ngram must be odd, not 2"),
        ({"embedding_size": None}, "it needs embedding_size, and embedding_norm=after or none"),
        ({"embedding_norm": "before"}, "it needs embedding_size, and embedding_norm=after or none"),
        ({"causal": True}, "embedding_ngram=3 sees the next token"),
        ({"bottleneck_size": None, "decoder_layers": 1}, "cannot follow an encoder with embedding_ngram=3"),
        ({"output_embedding_size": 6}, "output_embedding_size=6 must be more than the width 6 of the word table"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(NARROW, **changes)  # type: ignore[arg-type]


def test_the_preset_is_held_by_every_class() -> None:
    config = EncoderConfig(**preset("mobilebert"))
    for architecture, heads in FAMILY.architectures.items():
        plan = plan_export(config, heads)
        assert (plan.architecture, plan.has_sidecar, plan.unsupported) == (architecture, False, ())
    for changes in ({"bottleneck_size": None, "head_size": 32}, {"norm_type": "layer_norm"}, {"embedding_ngram": 5}):
        key = next(iter(changes))
        assert plan_export(dataclasses.replace(config, **changes), ("mlm",)).unsupported[0] == key  # type: ignore[arg-type]
    assert count_params(config, ("pooler",)) == 24_844_544  # google/mobilebert-uncased has 24,581,888 without a pooler


def test_other_maths_is_refused() -> None:
    for changes, message in (
        ({"normalization_type": "layer_norm"}, "layer norms have two epsilons there"),
        ({"use_bottleneck": False}, "layers have a bottleneck"),
        ({"trigram_input": False}, "words are projected with their neighbors"),
        ({"key_query_shared_bottleneck": False}, "use_bottleneck_attention = false needs the opposite"),
        ({"use_bottleneck_attention": True}, "use_bottleneck_attention = true needs the opposite"),
        ({"embedding_size": 16}, "output_embedding_size=16 must be more than the width 16"),
        ({"is_decoder": True}, "only encoders are supported"),
    ):
        with pytest.raises(UserError, match=message):
            FAMILY.parse_config(SIZES | changes)
