# ruff: noqa: E501 (XLA writes long lines)
"""Text of compiled programs: their collectives, how often each runs, and how many bytes it sends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bertjax.tools.collectives import Collective, find_collectives, totals_by_kind
from bertjax.tools.hlo import array_bytes, array_shapes, execution_counts, parse_hlo

LOOPS = """
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %x = f32[8,4]{1,0:T(8,128)S(1)} get-tuple-element(%p), index=1
  %all-reduce.1 = (f32[8,4]{1,0:T(8,128)S(1)}, bf16[3]{0}, /*index=2*/f32[]{:T(128)}) all-reduce(%x, %y, %z), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add, metadata={op_name="jit(step)/inner/dot_general" stack_frame_id=3}
  %j = s32[]{:T(128)} get-tuple-element(%p), index=0
  %two = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)} add(%j, %two), metadata={op_name="jit(step)/while/body/add"}
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%next, %x)
}

%inner_condition (p: (s32[], f32[8,4])) -> pred[] {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %limit = s32[]{:T(128)} constant(23)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%outer_body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %while.1 = (s32[], f32[8,4]{1,0}) while(%p), condition=%inner_condition, body=%inner_body
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %x)
}

%endless_body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %all-gather.9 = f32[16,4]{1,0} all-gather(%x), channel_id=9, replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %x)
}

%any_condition (p: (s32[], f32[8,4])) -> pred[] {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  ROOT %go = pred[] compare(%i, %j), direction=LT
}

%all-reduce-scatter (input: f32[8,4]) -> f32[4,4] {
  %input = f32[8,4]{1,0} parameter(0)
  %all-reduce.7 = f32[8,4]{1,0} all-reduce(%input), channel_id=7, replica_groups={{0,2},{1,3},{4,6},{5,7}}, to_apply=%add
  ROOT %own = f32[4,4]{1,0} dynamic-slice(%all-reduce.7, %i, %j), dynamic_slice_sizes={4,4}
}

%piece.1 (q: bf16[8,4]) -> bf16[16,4] {
  ROOT %all-gather.3 = bf16[16,4]{1,0} all-gather(%q), channel_id=5, replica_groups=[4,2]<=[8], dimensions={0}, frontend_attributes={chain_id="0"}
}

%piece.2 (q: bf16[8,4]) -> bf16[16,4] {
  ROOT %all-gather.4 = bf16[16,4]{1,0} all-gather(%q), channel_id=5, replica_groups=[4,2]<=[8], dimensions={0}, frontend_attributes={chain_id="0"}
}

ENTRY %main.1_spmd (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %while.2 = (s32[], f32[8,4]{1,0}) while(%t), condition=%any_condition, body=%outer_body, backend_config={"known_init_step":{"init":"0","step":"1"},"known_trip_count":{"n":"3"}}
  %while.3 = (s32[], f32[8,4]{1,0}) while(%t), condition=%any_condition, body=%endless_body
  %fusion.1 = f32[4,4]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter
  %fusion.2 = bf16[16,4]{1,0} fusion(%p), kind=kCustom, calls=%piece.1
  %fusion.3 = bf16[16,4]{1,0} fusion(%p), kind=kCustom, calls=%piece.2
  %ar-start = f32[8,4]{1,0} all-reduce-start(%p), channel_id=11, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  %ar-done = f32[8,4]{1,0} all-reduce-done(%ar-start)
  %ag-start = (f32[8,4]{1,0}, f32[64,4]{1,0}) all-gather-start(%p), channel_id=12, replica_groups=[1,8]<=[8], dimensions={0}
  %ag-done = f32[64,4]{1,0} all-gather-done(%ag-start)
  %cp-start = (f32[8,4]{1,0}, f32[8,4]{1,0}, u32[], u32[]) collective-permute-start(%p), channel_id=13, source_target_pairs={{0,1},{1,0},{2,2}}
  %cp-done = f32[8,4]{1,0} collective-permute-done(%cp-start)
  %rs = f32[1,4]{1,0} reduce-scatter(%p), channel_id=14, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%add
  %aa = (f32[4,4]{1,0}, f32[4,4]{1,0}) all-to-all(%p, %q), channel_id=15, replica_groups=mesh['a'=2,'b'=2,'c'=2] {'b'}
  %alone = f32[8,4]{1,0} all-reduce(%p), channel_id=16, replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%add
  ROOT %r = f32[8,4]{1,0} add(%ar-done, %cp-done)
}
"""
MESH = {"data": 2, "fsdp": 2, "tensor": 2}


@pytest.fixture(scope="module")
def collectives() -> dict[str, Collective]:
    return {each.name: each for each in find_collectives(LOOPS, MESH)}


def test_computations_run_as_often_as_the_loops_around_them() -> None:
    counts = execution_counts(parse_hlo(LOOPS))
    assert counts["main.1_spmd"] == 1
    assert counts["outer_body"] == 3 and counts["inner_body"] == 36  # the condition reads: 0, 2, ... below 23
    assert counts["inner_condition"] == 39
    assert counts["endless_body"] is None


def test_every_collective_is_found_once(collectives: dict[str, Collective]) -> None:
    assert sorted(each.kind for each in collectives.values()) == [
        "all-gather",
        "all-gather",
        "all-gather",
        "all-reduce",
        "all-reduce",
        "all-to-all",
        "collective-permute",
        "reduce-scatter",
        "reduce-scatter",
    ]
    assert "alone" not in collectives and "ar-done" not in collectives
    assert ("all-gather.3" in collectives) != ("all-gather.4" in collectives)  # two parts of one collective


@pytest.mark.parametrize(
    ("name", "kind", "size", "axes", "times"),
    [
        ("all-reduce.1", "all-reduce", 8 * 4 * 4 + 3 * 2 + 4, ("fsdp", "tensor"), 36),
        ("all-gather.9", "all-gather", 16 * 4 * 4, ("tensor",), None),
        ("all-reduce.7", "reduce-scatter", 8 * 4 * 4, ("fsdp",), 1),
        ("ar-start", "all-reduce", 8 * 4 * 4, ("data", "fsdp", "tensor"), 1),
        ("ag-start", "all-gather", 64 * 4 * 4, ("data", "fsdp", "tensor"), 1),
        ("cp-start", "collective-permute", 8 * 4 * 4, ("tensor",), 1),
        ("rs", "reduce-scatter", 8 * 4 * 4, ("data", "fsdp", "tensor"), 1),
        ("aa", "all-to-all", 2 * 4 * 4 * 4, ("fsdp",), 1),
    ],
)
def test_bytes_axes_and_times(
    collectives: dict[str, Collective], name: str, kind: str, size: int, axes: tuple[str, ...], times: int | None
) -> None:
    collective = collectives[name]
    assert (collective.kind, collective.bytes, collective.axes, collective.times) == (kind, size, axes, times)


def test_names_and_shapes(collectives: dict[str, Collective]) -> None:
    assert collectives["all-reduce.1"].op_name == "jit(step)/inner/dot_general"
    assert collectives["all-reduce.1"].shapes == ((8, 4), (3,), ())
    assert collectives["all-reduce.1"].group_size == 4 and collectives["rs"].group_size == 8


def test_totals_by_kind_count_every_run(collectives: dict[str, Collective]) -> None:
    totals = totals_by_kind(collectives.values())
    assert totals["all-reduce", ("fsdp", "tensor")] == (36, 36 * 138)
    assert totals["all-gather", ("tensor",)] == (2, 16 * 4 * 4 + 16 * 4 * 2)  # a loop of unknown length counts once


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[4,2]<=[2,2,2]T(0,2,1)", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("{{0,3},{1,2}}", ((0, 3), (1, 2))),
        ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=4,'b'=1,'c'=2] {'a','b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=2,'b'=1,'c'=4], device_ids=([2,2,2]T(0,2,1)) {'c':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
    ],
)
def test_groups_in_every_spelling(written: str, groups: tuple) -> None:
    line = f"  %r = f32[4]{{0}} all-reduce(%p), channel_id=1, replica_groups={written}, to_apply=%add"
    [collective] = find_collectives(f"ENTRY %main (p: f32[4]) -> f32[4] {{\n{line}\n}}\n")
    assert collective.groups == groups


def test_types() -> None:
    text = "(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/pred[5]{0}, f32[], token[], s4[4]{0}, f8e4m3fn[2])"
    assert array_bytes(text) == [12, 5, 4, 2, 2]
    assert array_shapes("f32[2,<=3]{1,0}") == [(2, 3)]


def test_what_xla_writes_is_read() -> None:
    """A sum over devices in a scan of five steps: the collective of a compiled program is reported with its bytes."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    whole = NamedSharding(mesh, PartitionSpec())

    def work(x: jax.Array, w: jax.Array) -> jax.Array:
        def body(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
            return total @ jax.lax.with_sharding_constraint(part.T @ part, whole) * 0.1, None

        return jax.lax.scan(body, w, x)[0]

    x = jax.ShapeDtypeStruct((5, 64, 24), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None, "data")))
    w = jax.ShapeDtypeStruct((24, 24), jnp.float32, sharding=whole)
    compiled = jax.jit(work, out_shardings=whole).lower(x, w).compile({"xla_backend_optimization_level": 0})
    [collective] = find_collectives(compiled.as_text(), {"data": 8})
    assert (collective.kind, collective.bytes, collective.times, collective.axes) == (
        "all-reduce",
        24 * 24 * 4,
        5,
        ("data",),
    )
    assert collective.groups is None or np.sort(np.concatenate(collective.groups)).tolist() == list(range(8))
