"""Parts of a training step, from a trace of a compiled program."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bertjax.tools.bertjax_runner import seconds_by_scope, self_times
from bertjax.tools.hlo import StepScope, scopes_by_instruction


def test_time_inside_others_is_counted_once() -> None:
    events = [
        ("outer", 0.0, 10.0),
        ("first", 1.0, 4.0),
        ("inner", 2.0, 3.0),
        ("second", 5.0, 6.0),
        ("next", 10.0, 12.0),
    ]
    result = dict(self_times(reversed(events)))
    assert result == {"outer": 6.0, "first": 2.0, "inner": 1.0, "second": 1.0, "next": 2.0}
    assert sum(result.values()) == 12.0


def work(x: jax.Array) -> jax.Array:
    with jax.named_scope("attention"):
        x = jnp.tanh(x @ x)
    with jax.named_scope("feed_forward"):
        return jax.lax.fori_loop(0, 20, lambda _, y: jnp.sin(y @ x), x)


@pytest.mark.long
def test_a_trace_finds_where_a_program_spends_its_time(tmp_path: Path) -> None:
    x = jnp.ones((256, 256))
    compiled = jax.jit(work).lower(x).compile()
    text = compiled.as_text()
    assert {"attention: matmuls, layout", "feed-forward"} <= {
        part.title for part in scopes_by_instruction(text).values()
    }
    jax.block_until_ready(compiled(x))
    jax.profiler.start_trace(str(tmp_path))
    jax.block_until_ready(compiled(x))
    jax.profiler.stop_trace()
    result = seconds_by_scope(tmp_path, text)
    loop = result[StepScope("feed-forward", "update")]
    assert loop > result[StepScope("attention: matmuls, layout", "update")] > 0.0
    assert loop > 0.5 * sum(result.values())
