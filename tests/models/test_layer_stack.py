"""Layers that run as one scan: every layer once, in order, split where layers differ."""

from __future__ import annotations

from typing import Any

import pytest

from bertjax.config.model import EncoderConfig
from bertjax.models.layer_stack import ScanRun, scan_runs

LOCAL, GLOBAL = True, False


def of(layers: int, **values: Any) -> list[ScanRun]:
    return scan_runs(EncoderConfig(num_layers=layers, **values))


def test_equal_layers_are_one_scan() -> None:
    assert of(12) == [ScanRun(0, 12, (GLOBAL,))]


def test_modernbert_is_a_first_layer_and_whole_periods() -> None:
    """22 = 1 + 7 x 3, 28 = 1 + 9 x 3."""
    values = {
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "first_attention_norm": False,
        "norm_placement": "pre",
    }
    for layers, periods in ((22, 7), (28, 9)):
        assert of(layers, **values) == [ScanRun(0, 1, (GLOBAL,)), ScanRun(1, periods, (LOCAL, LOCAL, GLOBAL))]


def test_what_is_left_of_a_pattern_runs_last() -> None:
    assert of(8, local_attention=4, global_attn_every_n_layers=3) == [
        ScanRun(0, 2, (GLOBAL, LOCAL, LOCAL)),
        ScanRun(6, 1, (GLOBAL, LOCAL)),
    ]


def test_groups_of_shared_layers_are_scans_of_their_own() -> None:
    assert of(5, num_groups=2, inner_layers=3) == [ScanRun(0, 3, (GLOBAL,), 0), ScanRun(3, 2, (GLOBAL,), 1)]
    assert of(12, num_groups=1) == [ScanRun(0, 12, (GLOBAL,), 0)]


def test_a_convolution_splits_after_the_first_layer() -> None:
    assert of(24, conv_kernel_size=3) == [ScanRun(0, 1, (GLOBAL,)), ScanRun(1, 23, (GLOBAL,))]


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 7), (0, 6), (3, 5), (4, 4)])
def test_any_stretch_runs_each_of_its_layers_once(start: int, stop: int) -> None:
    config = EncoderConfig(num_layers=7, local_attention=4, global_attn_every_n_layers=3)
    flags = [
        flag for segment in scan_runs(config, start, stop) for _ in range(segment.repeats) for flag in segment.pattern
    ]
    assert flags == [config.is_local(layer) for layer in range(start, stop)]
