"""Every transform is undone by its inverse, reports the shape that it makes, and agrees with torch's layout."""

from __future__ import annotations

import numpy as np
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.keymap import Entry, KeyMap, params_to_tensors, tensors_to_params
from bertjax.hf.transforms import TRANSFORMS

SIZES = {"N": 3, "groups": 2}
CONFIG = EncoderConfig()
SHAPES = {
    "same": [(5, 6), (6,)],
    "transpose": [(5, 6)],
    "concat": [(5, 6), (6,)],
    "concat_transpose": [(5, 6)],
    "interleave_heads": [(5, 6), (6,)],
    "interleave_rotary_heads": [(5, 12)],
    "rotary_pairs": [(5, 12), (12,)],
    "rotary_pairs_output": [(12, 5)],
    "split_heads": [(5, 6)],
    "split_heads_output": [(6, 5)],
    "lone_vector": [(5,)],
    "conv": [(3, 4, 6)],
    "pointwise": [(5, 6)],
    "head_parts_output": [(12, 5)],
    "blocks": [(5, 6)],
    "column": [(5,)],
    "row": [(5,)],
}
FUSED = ("concat", "concat_transpose", "interleave_heads", "interleave_rotary_heads")
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


def test_every_transform_has_a_case() -> None:
    assert SHAPES.keys() == TRANSFORMS.keys()


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_there_and_back(name: str, shape: tuple[int, ...]) -> None:
    transform, count = TRANSFORMS[name], 3 if name in FUSED else 1
    ours = [np.random.default_rng(i).standard_normal(shape) for i in range(count)]
    theirs = transform.join(ours, SIZES)
    assert theirs.shape == transform.tensor_shape(shape, count, SIZES)
    for mine, back in zip(ours, transform.split(theirs, count, SIZES), strict=True):
        np.testing.assert_array_equal(mine, back)


def test_fused_projections_give_the_same_products() -> None:
    draw = np.random.default_rng(0).standard_normal
    x, parts = draw((2, 5)), [draw((5, 6)) for _ in range(3)]
    q, k, v = (x @ part for part in parts)
    np.testing.assert_allclose(x @ TRANSFORMS["concat"].join(parts, SIZES), np.concatenate([q, k, v], -1))
    fused = x @ TRANSFORMS["concat_transpose"].join(parts, SIZES).T
    np.testing.assert_allclose(np.stack(np.split(fused, 3, -1)), np.stack([q, k, v]))
    # DeBERTa: the rows of each head are its query, its key, its value
    heads = (x @ TRANSFORMS["interleave_heads"].join(parts, SIZES).T).reshape(2, 3, 3, 2)
    for part, expected in enumerate((q, k, v)):
        np.testing.assert_allclose(heads[:, :, part].reshape(2, 6), expected)
    # XLNet: h,dnh->nh and nh,dnh->d
    np.testing.assert_allclose(
        np.einsum("bd,dnh->bnh", x, TRANSFORMS["split_heads"].join(parts[:1], SIZES)).reshape(2, 6), q
    )
    # ConvBERT: first one part of all heads, then the other
    both, output = np.concatenate([q.reshape(2, 3, 2), k.reshape(2, 3, 2)], -1).reshape(2, 12), draw((12, 5))
    theirs = TRANSFORMS["head_parts_output"].join([output], SIZES)
    np.testing.assert_allclose(np.concatenate([q, k], -1) @ theirs.T, both @ output)
    output = draw((6, 5))
    theirs = TRANSFORMS["split_heads_output"].join([output], SIZES)
    np.testing.assert_allclose(np.einsum("bnh,dnh->bd", q.reshape(2, 3, 2), theirs), q @ output)


STACKS = KeyMap(
    entries=(
        Entry("groups/{G}/layers/{I}/kernel", "g.{G}.i.{I}.weight", "2 3", "transpose"),
        Entry("norms/layers/{K}/scale", "layers.{K+1}.norm.weight", "4"),
        Entry(("layers/{L}/query", "layers/{L}/key"), "layers.{L}.in_proj.weight", "2 6", "interleave_heads"),
    ),
    sizes={"G": 2, "I": 2, "K": 2, "L": 3, "N": 3},
)


def stacks() -> dict:
    draw = np.random.default_rng(1).standard_normal
    return {
        "groups": {"layers": {"kernel": draw((2, 2, 2, 3)).astype("f4")}},
        "norms": {"layers": {"scale": draw((2, 4)).astype("f4")}},
        "layers": {"query": draw((3, 2, 6)).astype("f4"), "key": draw((3, 2, 6)).astype("f4")},
    }


def test_stacks_of_two_letters_offsets_and_fused_parts() -> None:
    params = stacks()
    tensors = params_to_tensors(STACKS, params, CONFIG, ())
    assert sorted(tensors) == sorted(
        [f"g.{g}.i.{i}.weight" for g in range(2) for i in range(2)]
        + ["layers.1.norm.weight", "layers.2.norm.weight"]
        + [f"layers.{layer}.in_proj.weight" for layer in range(3)]
    )
    np.testing.assert_array_equal(tensors["g.1.i.0.weight"], params["groups"]["layers"]["kernel"][1, 0].T)
    np.testing.assert_array_equal(tensors["layers.2.norm.weight"], params["norms"]["layers"]["scale"][1])
    assert tensors["layers.0.in_proj.weight"].shape == (12, 2)
    back = tensors_to_params(STACKS, tensors, ())
    np.testing.assert_equal(back, params)


def test_errors_of_one_part_of_a_fused_tensor_are_named() -> None:
    params = stacks()
    params["layers"]["key"] = params["layers"]["key"][:, :, :5]
    with pytest.raises(UserError, match=r"misshapen: layers/key \[3, 2, 5\] instead of \[3, 2, 6\]"):
        params_to_tensors(STACKS, params, CONFIG, ())
    del params["layers"]["key"]
    with pytest.raises(UserError, match="missing: layers/key"):
        params_to_tensors(STACKS, params, CONFIG, ())
    tensors = params_to_tensors(STACKS, stacks(), CONFIG, ())
    tensors["layers.1.in_proj.weight"] = tensors["layers.1.in_proj.weight"].T
    with pytest.raises(UserError, match=r"misshapen: layers.1.in_proj.weight \[2, 12\] instead of \[12, 2\]"):
        tensors_to_params(STACKS, tensors, ())


def test_two_heads_of_one_name_do_not_overwrite_each_other() -> None:
    keymap = KeyMap((Entry("a", "classifier", "2", head="a"), Entry("b", "classifier", "2", head="b")), {})
    params = {"a": np.zeros(2), "b": np.ones(2)}
    with pytest.raises(UserError, match="two heads of a, b have the name classifier"):
        params_to_tensors(keymap, params, CONFIG, ("a", "b"))
    assert keymap.detect_heads({"classifier": 0}, ()) == ()  # only the class determines the owner
    assert keymap.detect_heads({"classifier": 0}, ("b",)) == ("b",)
