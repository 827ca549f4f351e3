# ruff: noqa: E501 (XLA writes long lines)
"""Programs for GPUs: what each kernel reads, writes and multiplies, and compilation for GPUs that are not attached."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from bertjax.cli import main
from bertjax.errors import UserError
from bertjax.models.mesh import target_platform
from bertjax.tools.hlo import parse_hlo
from bertjax.tools.roofline import (
    ATTENTION_SHARE,
    LAUNCH_SECONDS,
    MATMUL_SHARE,
    kernel_totals,
    kernels,
    matmuls_by_type,
)
from bertjax.tools.topology import GPUS, gpu_devices, gpu_spec, is_gpu, target_config, topology_devices

GPU, PEAK = GPUS["h100"], 989e12
HAS_PLUGIN = importlib.util.find_spec("jax_plugins") is not None and any(
    importlib.util.find_spec(f"jax_plugins.xla_cuda{version}") is not None for version in (12, 13)
)

PROGRAM = """
HloModule jit_step, is_scheduled=true

%fused_slice (p0: f32[12,1024,1024], p1: s32[]) -> f32[1024,1024] {
  %p0 = f32[12,1024,1024]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,1024,1024]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,1024,1024}
  ROOT %out = f32[1024,1024]{1,0} bitcast(%slice)
}

%fused_update (q0: f32[12,1024,1024], q1: f32[1024,1024], q2: s32[]) -> f32[12,1024,1024] {
  %q0 = f32[12,1024,1024]{2,1,0} parameter(0)
  %q1 = f32[1024,1024]{1,0} parameter(1)
  %q2 = s32[] parameter(2)
  %nought = s32[] constant(0)
  %row = f32[1,1024,1024]{2,1,0} bitcast(%q1)
  ROOT %update = f32[12,1024,1024]{2,1,0} dynamic-update-slice(%q0, %row, %q2, %nought, %nought)
}

%body (s: (s32[], f32[12,1024,1024])) -> (s32[], f32[12,1024,1024]) {
  %s = (s32[], f32[12,1024,1024]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[12,1024,1024]{2,1,0} get-tuple-element(%s), index=1
  %sliced = f32[1024,1024]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused_slice
  %updated = f32[12,1024,1024]{2,1,0} fusion(%x, %sliced, %i), kind=kLoop, calls=%fused_update
  ROOT %t = (s32[], f32[12,1024,1024]{2,1,0}) tuple(%i, %updated)
}

%condition (s: (s32[], f32[12,1024,1024])) -> pred[] {
  %s = (s32[], f32[12,1024,1024]{2,1,0}) parameter(0)
  ROOT %go = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (a: bf16[8192,8192], b: bf16[8192,8192]) -> bf16[8192,8192] {
  %a = bf16[8192,8192]{1,0} parameter(0)
  %b = bf16[8192,8192]{1,0} parameter(1)
  %small = f32[4]{0} parameter(2)
  %q = bf16[8,512,16,64]{3,2,1,0} parameter(3)
  %l = f32[64,128,256]{2,1,0} parameter(4)
  %r = f32[64,256,32]{2,1,0} parameter(5)
  %gemm = (bf16[8192,8192]{1,0}, s8[4194304]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"lhs_batch_dimensions":[]}}}
  %batched = (f32[64,128,32]{2,1,0}, s8[64]{0}) custom-call(%l, %r), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]}}}
  %attention = (bf16[8,16,512,64]{3,1,2,0}, f32[8,16,512]{2,1,0}, u8[0]{0}) custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax"
  %gradients = (bf16[8,16,512,64]{3,1,2,0}, bf16[8,16,512,64]{3,1,2,0}, bf16[8,16,512,64]{3,1,2,0}, u8[0]{0}) custom-call(%q, %q, %q, %q), custom_call_target="__cudnn$fmhaSoftmaxBackward"
  %keys = (bf16[8,512,16,64]{3,2,1,0}, bf16[8,512,16,64]{3,2,1,0}) custom-call(%q, %q, %q), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(train_step)/attention/attention_key_gradient/pallas_call"}
  %k = bf16[8,896,16,64]{3,2,1,0} parameter(6)
  %table = bf16[1,1408,16,64]{3,2,1,0} parameter(7)
  %relative = (bf16[8,512,16,64]{3,2,1,0}, f32[8,16,512]{2,1,0}) custom-call(%q, %q, %k, %k, %table), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(train_step)/attention/relative_attention_forward/pallas_call"}
  %local = (bf16[8,512,16,64]{3,2,1,0}, f32[8,16,512]{2,1,0}) custom-call(%q, %k, %k), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(train_step)/attention/attention_forward_window128/pallas_call"}
  %norm = (bf16[4096,1024]{1,0}, bf16[4096,1024]{1,0}, f32[256,3,1024]{2,1,0}) custom-call(%tokens, %tokens, %small), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="jit(train_step)/transpose(jvp())/layer/add_and_normalize_backward/pallas_call"}
  %tokens = bf16[4096,1024]{1,0} parameter(8)
  %tiny = f32[4]{0} negate(%small)
  %while = (s32[], f32[12,1024,1024]{2,1,0}) while(%t), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  ROOT %all-reduce = bf16[8192,8192]{1,0} all-reduce(%a), channel_id=1, replica_groups={{0,1}}, to_apply=%add
}
"""


@pytest.fixture(scope="module")
def totals() -> dict[str, tuple[int, float, int]]:
    return kernel_totals(kernels(parse_hlo(PROGRAM), GPU, PEAK, 512))


def test_matmuls_take_their_share_of_the_peak() -> None:
    result = kernels(parse_hlo(PROGRAM), GPU, PEAK, 512)
    assert [each.types for each in result if each.kind == "matmul"] == ["bf16 bf16 -> bf16", "f32 f32 -> f32"]
    large, batched = (each for each in result if each.kind == "matmul")
    assert large.seconds == pytest.approx(2 * 8192**3 / (MATMUL_SHARE * PEAK))
    moved = 4 * 64 * (128 * 256 + 256 * 32 + 128 * 32)
    flops = 2 * 64 * 128 * 256 * 32
    assert (
        flops / (MATMUL_SHARE * PEAK) < moved / GPU.bandwidth
    )  # its time follows from its bytes; sqrt(64) must not enter
    assert batched.seconds == pytest.approx((moved + 64) / GPU.bandwidth)
    assert matmuls_by_type(result)["bf16 bf16 -> bf16"] == (1, large.seconds)


def test_attention_takes_seven_matmuls_and_ours_four_for_keys_and_for_distances(
    totals: dict[str, tuple[int, float, int]],
) -> None:
    count, seconds, _ = totals["attention"]
    flops = 11 * 2 * 8 * 16 * 512 * 512 * 64 + 4 * 2 * 8 * 16 * 512 * 896 * 64
    flops += 2 * 2 * 8 * 16 * 512 * (3 * 64) * 64  # blocks of a window of 128
    assert count == 5 and seconds == pytest.approx(flops / (ATTENTION_SHARE * PEAK))


def test_slices_count_what_they_touch_as_often_as_they_run(totals: dict[str, tuple[int, float, int]]) -> None:
    """Reading a slice of a stack, and writing one into it, moves the slice and not the stack."""
    count, seconds, size = totals["other"]
    matrix, indices = 4 * 1024 * 1024, 4 + 4
    body = 4 * matrix + indices
    norm = 3 * 2 * 4096 * 1024 + 4 * 256 * 3 * 1024 + 16  # the kernel of the norm: operands and results, once each
    assert (count, size) == (2 + 2 * 12, 12 * body + norm + 2 * 16)
    assert seconds == pytest.approx((12 * body + norm) / GPU.bandwidth + LAUNCH_SECONDS)
    assert totals["collective"][:2] == (1, 0.0)


def test_a_data_sheet_is_a_target_of_xla() -> None:
    text = target_config(GPUS["a100"])
    assert "core_count: 108" in text and "major: 8 minor: 0" in text and "ACCELERATED" not in text
    assert text.count("{") == text.count("}") and "shared_memory_per_block_optin: 166912" in text
    assert "ACCELERATED_FEATURES" in target_config(GPU)


def test_names_of_gpus() -> None:
    assert [is_gpu(text) for text in ("h100", "H200:2x8", "a100:1x4", "v5e-16", "h100-8", "b300")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert gpu_spec(types.SimpleNamespace(device_kind="cpu")) is None
    with pytest.raises(UserError, match="at least one host and one GPU"):
        gpu_devices("h100:0x8")
    with pytest.raises(UserError, match=r"h100:1x8; chips are v4, .*h200"):
        topology_devices("h100-8")


def test_a_mesh_of_absent_gpus_is_cuda() -> None:
    """Otherwise programs for GPUs would get the kernels and dtypes of a CPU."""
    device = jax.sharding.AbstractDevice(GPU.device_kind, None, "gpu")
    mesh = AbstractMesh((1,), ("data",), (AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        assert target_platform() == "cuda"


@pytest.mark.skipif(HAS_PLUGIN, reason="the plugin is here")
def test_without_the_plugin_the_message_names_it() -> None:
    with pytest.raises(UserError, match=r"pip install 'bertjax\[compile-gpu\]'"):
        gpu_devices("h100")


@pytest.mark.long
@pytest.mark.skipif(not HAS_PLUGIN, reason="needs jax's plugin for CUDA")
def test_a_step_for_eight_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention uses cuDNN although this machine has none, every large matmul reads bfloat16, gradients are reduced."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    config = str(Path(__file__).parents[2] / "configs" / "bert.py:smoke")
    sizes = {"train.phases": "", "train.num_steps": 10, "data.seq_len": 64, "model.attention_dropout": 0.0}
    changes = [f"--config.{key}={value}" for key, value in sizes.items()]
    assert main(["compile", "--config", config, *changes, "--topology", "h100:1x8"]) == 0
    printed = capsys.readouterr().out
    assert "8 x NVIDIA H100" in printed and "ROOFLINE, not measured" in printed
    assert "attention  " in printed and "all-reduce" in printed and "matmul bf16 bf16 -> bf16" in printed
