"""A larger model that starts from a smaller one: which weights it copies, what it computes, what is refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lab import Finished, Lab
from parity.compare import random_params

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.experiment.growth import GROWING, grow, layer_sources
from bertjax.hf.pretrained import PretrainedModel
from bertjax.io.tree_paths import flatten_tree
from bertjax.types import Params

HEADS = ("mlm",)
POST = EncoderConfig(
    vocab_size=30, hidden_size=12, num_layers=3, num_heads=3, intermediate_size=10, max_position_embeddings=16
)
PRE = dataclasses.replace(
    POST,
    position_embedding="none",
    type_vocab_size=0,
    attention_position="rotary",
    feed_forward="glu",
    norm_placement="pre",
    norm_bias=False,
    first_attention_norm=False,
    local_attention=4,
    global_attn_every_n_layers=2,
)
ALBERT = dataclasses.replace(POST, embedding_size=6, num_groups=1)
LLAMA = dataclasses.replace(
    PRE, num_heads=6, head_size=4, num_key_value_heads=3, qk_norm=True, norm_type="rms_norm", tie_word_embeddings=False
)
CENTERED = dataclasses.replace(PRE, norm_zero_centered=True, first_global_layer=1)
DOUBLED = {"hidden_size": 24, "num_heads": 6, "intermediate_size": 20}


def outputs(config: EncoderConfig, params: Params) -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(5).integers(1, 30, (2, 14))
    out = PretrainedModel(config, jax.tree.map(jnp.asarray, params), HEADS)(ids)
    return np.asarray(out.last_hidden_state), np.asarray(out.mlm_logits)


def wrapped(old: np.ndarray, size: int, unit: int = 1) -> list[int]:
    """The rule in words: old units in the middle, then outwards on both sides from the other end, unit by unit."""
    units, more = len(old) // unit, (size - len(old)) // unit
    left = more // 2
    order = [(unit_index - left) % units for unit_index in range(units + more)]
    return [number * unit + inside for number in order for inside in range(unit)]


def test_tiles_are_those_of_modernbert() -> None:
    """12 wide, 3 heads, 10 inside, 3 layers -> 24 wide, 6 heads, 13 inside, 4 layers."""
    new = dataclasses.replace(PRE, hidden_size=24, num_heads=6, intermediate_size=13, num_layers=4)
    params = jax.device_get(random_params(PRE, HEADS))
    old, grown = flatten_tree(params), flatten_tree(grow(params, HEADS, PRE, new, "tile"))
    wide, heads, inside = wrapped(np.arange(12), 24), wrapped(np.arange(12), 24, 4), wrapped(np.arange(10), 13)
    assert wide == [*range(6, 12), *range(12), *range(6)]
    assert heads == [*range(8, 12), *range(12), *range(8)]  # one head before the old heads, two after them
    assert inside == [9, *range(10), 0, 1]
    assert list(layer_sources(3, 4, "tile")) == [0, 1, 2, 2]
    assert list(layer_sources(3, 7, "stack")) == [0, 1, 2, 0, 1, 2, 0]
    assert list(layer_sources(22, 28, "tile")) == [round(layer * 22 / 28) for layer in range(28)]
    word = old["encoder/embeddings/word_embeddings/embedding"]
    assert np.array_equal(grown["encoder/embeddings/word_embeddings/embedding"], word[:, wide])
    for layer, source in enumerate([0, 1, 2, 2]):
        for name, rows, columns in (
            ("attention/query", wide, heads),
            ("attention/output", heads, wide),
            ("feed_forward/gate", wide, inside),
            ("feed_forward/output", inside, wide),
        ):
            path = f"encoder/layers/{name}/kernel"
            expected = np.array([[old[path][source][row, column] for column in columns] for row in rows])
            assert np.array_equal(grown[path][layer], expected), path
    norms = old["encoder/attention_norms/layers/scale"]
    assert np.array_equal(grown["encoder/attention_norms/layers/scale"], norms[[0, 1, 1]][:, wide])


@pytest.mark.parametrize("centered", [False, True])
def test_a_first_layer_without_norm_is_copied_with_one_that_does_nothing(centered: bool) -> None:
    old = dataclasses.replace(PRE, norm_zero_centered=centered)
    grown = flatten_tree(grow(random_params(old, HEADS), HEADS, old, dataclasses.replace(old, num_layers=5), "stack"))
    norms, factor = grown["encoder/attention_norms/layers/scale"], 0.0 if centered else 1.0
    assert norms.shape == (4, 12) and not np.array_equal(norms[3], norms[2])
    assert np.array_equal(norms[2], np.full(12, factor))


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name, marks=[] if name == "pre" else pytest.mark.weekly)
        for name, config in {"post": POST, "pre": PRE, "albert": ALBERT, "llama": LLAMA, "centered": CENTERED}.items()
    ],
)
def test_whole_multiples_compute_what_the_source_does(config: EncoderConfig) -> None:
    larger: dict[str, Any] = {
        name: 2 * size for name in GROWING if (size := getattr(config, name)) and name != "num_layers"
    }
    new, params = dataclasses.replace(config, **larger), random_params(config, HEADS)
    hidden, logits = outputs(config, params)
    new_hidden, new_logits = outputs(new, grow(params, HEADS, config, new, "stack"))
    middle = wrapped(np.arange(12), 24)
    np.testing.assert_allclose(new_hidden, hidden[..., middle], rtol=0, atol=2e-5)
    np.testing.assert_allclose(new_logits, logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("adapter_size", [None, 5])
def test_layers_that_add_nothing_change_nothing(adapter_size: int | None) -> None:
    old = dataclasses.replace(PRE, adapter_size=adapter_size)
    new, params = dataclasses.replace(old, num_layers=7), random_params(old, HEADS)
    for result, expected in zip(
        outputs(new, grow(params, HEADS, old, new, "identity")), outputs(old, params), strict=True
    ):
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "changes", "how", "message"),
    [
        (POST, {"num_layers": 2, "hidden_size": 24}, "tile", "num_layers is 3 there, 2 here"),
        (POST, {"hidden_size": 24}, "tile", "heads of 4 there, of 8 here"),
        (POST, {"num_layers": 4}, "identity", "needs model.norm_placement=pre or parallel"),
        (POST, {"embedding_size": 24, **DOUBLED}, "stack", "embedding_size is None there, 24 here"),
        (
            dataclasses.replace(POST, position_embedding="sinusoidal"),
            DOUBLED,
            "tile",
            "positions of another width are computed",
        ),
    ],
)
def test_what_cannot_grow_is_refused(old: EncoderConfig, changes: dict[str, Any], how: str, message: str) -> None:
    new = dataclasses.replace(old, **changes)
    with pytest.raises(UserError, match=message) as caught:
        grow(random_params(old, HEADS), HEADS, old, new, how)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_run_begins_where_its_source_is(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice as wide and one layer deeper; 32 -> 64, 4 -> 8 heads of size 8."""
    source = f"--config.init_from={finished.workdir}", f"--config.data.tokenizer={finished.workdir}/tokenizer"
    sizes = [f"--config.model.{name}" for name in ("hidden_size=64", "num_heads=8", "intermediate_size=96")]
    short = "--config.train.num_steps=1", "--config.export.at_end=false"
    stacked = "--config.init_growth=stack"
    assert lab.run("pretrain", "--workdir", tmp_path / "refused", *source, *sizes, *short) == 2
    assert "or grow a smaller model with --config.init_growth=tile" in capsys.readouterr().err
    assert lab.run("pretrain", "--workdir", tmp_path / "run", *source, *sizes, *short, stacked) == 0
    printed = re.search(
        r"before the first step: ([\d.]+) grown \(init_growth=stack\), ([\d.]+) source, ([\d.]+) fresh",
        capsys.readouterr().out,
    )
    assert printed is not None
    grown, before, fresh = map(float, printed.groups())
    assert abs(grown - before) < 2e-3 and grown < fresh - 0.2
