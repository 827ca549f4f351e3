"""Parts of a training step, from the names of operations."""

from __future__ import annotations

import pytest

from bertjax.runtime.scopes import StepScope, scope_of


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
