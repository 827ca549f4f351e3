"""Names of TPU slices, their properties, and the estimates that follow from them."""

from __future__ import annotations

import importlib.util
from collections import Counter

import jax
import pytest

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.tools.collectives import Collective
from bertjax.tools.compile_report import ATTENTION_RATE, attention_seconds, collective_seconds
from bertjax.tools.compile_step import custom_calls, estimated_cycles
from bertjax.tools.hlo import parse_hlo
from bertjax.tools.topology import CHIPS, parse_topology, tpu_devices, virtual_devices


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("v5e-1", (1, 1)),
        ("v5e-4", (2, 2)),
        ("v5e-8", (2, 4)),
        ("v5e-16", (4, 4)),
        ("v5e-256", (16, 16)),
        ("v6e:4x8", (4, 8)),
        ("v4-8", (2, 2, 1)),  # the name counts cores, two per chip
        ("v4-32", (2, 2, 4)),
        ("v4-128", (4, 4, 4)),
        ("v5p-512", (4, 8, 8)),
        ("v5p:2x2x2", (2, 2, 2)),
    ],
)
def test_slices_have_the_shapes_of_the_cloud(text: str, shape: tuple[int, ...]) -> None:
    """cloud.google.com/tpu/docs: v5e, v6e, v4, v5p, accelerator types and their topologies."""
    assert parse_topology(text) == (text[:3].rstrip("-:"), shape)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v9-4", "is not known"),
        ("v5e", "is not known"),
        ("v5e-12", "powers of two"),
        ("v5e:4x4x4", "2 dimensions"),
        ("v4:4x4", "3 dimensions"),
    ],
)
def test_what_is_no_slice_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_topology(text)


def test_virtual_devices_are_those_of_this_process() -> None:
    assert len(jax.devices()) == 8  # jax has started with the devices of the tests
    assert virtual_devices(3) == jax.devices("cpu")[:3]
    with pytest.raises(UserError, match="jax has started with 8"):
        virtual_devices(9)
    with pytest.raises(UserError, match="at least 1"):
        virtual_devices(0)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is here")
def test_without_libtpu_the_message_names_it() -> None:
    with pytest.raises(UserError, match=r"pip install 'bertjax\[compile-tpu\]'"):
        tpu_devices("v5e-16")


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
@pytest.mark.parametrize(("text", "number"), [("v5e-256", 256), ("v4-32", 16), ("v5p-32", 16), ("v6e-16", 16)])
def test_slices_of_every_chip_can_be_compiled_for(text: str, number: int) -> None:
    assert len(tpu_devices(text)) == number


CYCLES = """
%body (p: f32[4]) -> f32[4] {
  %f = f32[4]{0} fusion(%p), kind=kLoop, calls=%c, backend_config={"window_config":{"estimated_cycles":"100"}}
  %k = f32[4]{0} custom-call(%p), custom_call_target="tpu_custom_call"
  %b = f32[4]{0} custom-call(), custom_call_target="AllocateBuffer"
}

%condition (p: f32[4]) -> pred[] {
  ROOT %lt = pred[] compare(%p, %p), direction=LT
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %g = f32[4]{0} fusion(%p), kind=kLoop, calls=%c, backend_config={"window_config":{"estimated_cycles":"7"}}
  %w = f32[4]{0} while(%g), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
}
"""


def test_cycles_and_kernels_count_as_often_as_they_run() -> None:
    program = parse_hlo(CYCLES)
    assert estimated_cycles(program) == 5 * 100 + 7
    assert custom_calls(program) == {"tpu_custom_call": 5}


def test_time_on_the_wire_is_that_of_a_ring() -> None:
    def one(kind: str, size: int, times: int | None) -> Collective:
        return Collective(kind, size, (), ((0, 1, 2, 3),), (), times, "", "")

    chip = CHIPS["v5e"]
    gathered = collective_seconds([one("all-gather", 900, 2)], chip)
    assert gathered == pytest.approx(2 * 900 * 3 / 4 / (2 * chip.link))
    assert collective_seconds([one("all-reduce", 900, 2)], chip) == pytest.approx(2 * gathered)
    assert collective_seconds([one("reduce-scatter", 900, None)], chip) == pytest.approx(gathered / 2)


def test_attention_kernels_are_counted_with_their_repeated_products() -> None:
    """Two products forward, seven backward; heads of 64 use the memory of 128; time at a stated share of the peak."""
    config = EncoderConfig(hidden_size=128, num_heads=2, num_layers=3)
    calls = Counter({"tpu_custom_call": 9})
    expected = 3 * 9 * 2.0 * 1000 * 512 * (2 * 128) / (ATTENTION_RATE * 1e12)
    assert attention_seconds(calls, config, 512, 1000.0, 1e12) == pytest.approx(expected)
    relative = EncoderConfig(
        hidden_size=128, num_heads=2, num_layers=3, attention_position="relative", attention_bias="none", mem_len=384
    )
    expected *= 26 / 9 * (512 + 384) / 512
    assert attention_seconds(calls, relative, 512, 1000.0, 1e12) == pytest.approx(expected)
    assert attention_seconds(Counter(), config, 512, 1000.0, 1e12) is None
    assert attention_seconds(calls, config, 512, 1000.0, None) is None
