"""Parts of a training step, from the names of operations."""

from __future__ import annotations

import pytest

from bertjax.tools.hlo import StepScope, scope_of, scopes_by_instruction


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (
            "jit(train_step)/jvp()/closed_call/layer/attention/dot_general",
            StepScope("attention: matmuls, layout", "forward"),
        ),
        ("jit(train_step)/transpose(jvp())/layer/attention/softmax/exp", StepScope("attention: softmax", "backward")),
        ("jit(train_step)/transpose(jvp(embeddings))/dropout/select_n", StepScope("dropout", "backward")),
        ("jit(train_step)/optimizer/mul", StepScope("clipping and optimizer", "update")),
        ("jit(train_step)/jvp()/closed_call/jit(_threefry_split)/stacked_layers/while", StepScope("other", "forward")),
        ("", StepScope("other", "update")),
    ],
)
def test_an_operation_belongs_to_its_innermost_scope(name: str, part: StepScope) -> None:
    assert scope_of(name) == part


def test_what_has_no_name_belongs_to_its_parts_or_operands() -> None:
    """XLA's copies of gradients have the name of the layer alone, kernels of its libraries have none."""
    scopes = scopes_by_instruction(
        """
%fused.1 (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %tanh.1 = f32[4]{0} tanh(%p), metadata={op_name="jit(step)/jvp(layer)/feed_forward/tanh"}
}
%fused.2 (p.2: f32[4]) -> f32[4] {
  %p.2 = f32[4]{0} parameter(0)
  ROOT %negate.1 = f32[4]{0} negate(%p.2)
}
ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0), metadata={op_name="params['attention']"}
  %copy_fusion = f32[4]{0} fusion(%a), kind=kLoop, calls=%fused.1, metadata={op_name="jit(step)/transpose(jvp(jit(f)))"}
  %dot.1 = f32[4]{0} multiply(%a, %a), metadata={op_name="jit(step)/jvp()/attention/dot"}
  %kernel = f32[4]{0} fusion(%a, %dot.1), kind=kCustom, calls=%fused.2
  ROOT %last = f32[4]{0} fusion(%kernel, %copy_fusion), kind=kLoop, calls=%fused.2
}
"""
    )
    attention = StepScope("attention: matmuls, layout", "forward")
    assert scopes["copy_fusion"] == StepScope("feed-forward", "backward")
    assert scopes["kernel"] == scopes["last"] == attention and "a" not in scopes
