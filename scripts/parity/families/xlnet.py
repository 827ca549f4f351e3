"""XLNet: `transformers.XLNetConfig`. Token types may have any value there: scores depend on their equality only."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.cases import Arrays, Case, ExtraCall

CLASSES = (
    "XLNetLMHeadModel",
    "XLNetForSequenceClassification",
    "XLNetForMultipleChoice",
    "XLNetForTokenClassification",
    "XLNetForQuestionAnsweringSimple",
    "XLNetModel",
)
_TARGETS = 4


def draw_order(batch: Arrays) -> Arrays:
    """Draws `perm_mask` [B, S, S] of a random order of prediction, and `target_mapping` [B, T, S] of its last tokens.

    Other tokens see no target; a target sees the targets before it. A target may be padding, and then
    sees nothing.
    """
    batch_size, length = batch["input_ids"].shape
    order = np.stack([np.random.default_rng(index).permutation(length) for index in range(batch_size)])
    rank = np.maximum(order - (length - _TARGETS), -1)  # -1: not a target
    invisible = (rank[:, None, :] >= 0) & (rank[:, :, None] <= rank[:, None, :])
    targets = np.argsort(order, axis=1)[:, -_TARGETS:]
    return {"perm_mask": invisible.astype(np.float32), "target_mapping": np.eye(length, dtype=np.float32)[targets]}


def _draw_mask(batch: Arrays) -> Arrays:
    return {"perm_mask": draw_order(batch)["perm_mask"]}


def _next_batch(batch: Arrays) -> Arrays:
    """Returns another batch of the same shape, which continues this one."""
    return batch | {"input_ids": batch["input_ids"][:, ::-1].copy()}


def _numbered(name: str, states: Any) -> Arrays:
    return {f"{name}[{index}]": np.asarray(state) for index, state in enumerate(states)}


def _run_transformers(model: Any, batch: Arrays, **inputs: Any) -> Any:
    from parity.compare import run_transformers  # imports torch's side; the cases themselves need neither

    options = {name: inputs.pop(name) for name in ("mems",) if name in inputs}
    return run_transformers(model, batch | inputs, output_hidden_states=True, use_mems=True, **options)


def _transformers_arrays(out: Any) -> Arrays:
    """Returns the outputs of any class; memory [L, B, M, D], hidden states of the two streams separately."""
    arrays = {name: out[name].numpy() for name in ("logits", "last_hidden_state") if name in out}
    arrays["memory"] = np.stack([layer.numpy() for layer in out.mems]).swapaxes(1, 2)
    if len(out.hidden_states) == len(out.mems) + 1:
        return arrays | _numbered("hidden_states", out.hidden_states)
    streams = {"hidden_states": out.hidden_states[::2], "target hidden_states": out.hidden_states[1::2]}
    return arrays | {key: value for name, states in streams.items() for key, value in _numbered(name, states).items()}


def _bertjax_arrays(model: Any, batch: Arrays, **inputs: Any) -> Arrays:
    out = model(**batch, output_hidden_states=True, output_memory=True, **inputs)
    last = {"logits": out.mlm_logits} if "mlm" in model.heads else {"last_hidden_state": out.last_hidden_state}
    arrays = {name: np.asarray(value) for name, value in (last | {"memory": out.memory}).items()}
    arrays |= _numbered("hidden_states", out.hidden_states)
    return arrays | _numbered(
        "target hidden_states", () if out.target_hidden_states is None else out.target_hidden_states
    )


def _call(name: str, draw: Any, with_memory: bool = False) -> ExtraCall:
    """Returns a call with the inputs that `draw(batch)` returns, on a batch that continues another if `with_memory`."""

    def transformers(model: Any, batch: Arrays) -> Arrays:
        inputs = draw(batch)
        if with_memory:
            inputs, batch = inputs | {"mems": _run_transformers(model, batch).mems}, _next_batch(batch)
        return _transformers_arrays(_run_transformers(model, batch, **inputs))

    def bertjax(model: Any, batch: Arrays) -> Arrays:
        inputs = draw(batch)
        if with_memory:
            inputs, batch = inputs | {"memory": model(**batch, output_memory=True).memory}, _next_batch(batch)
        return _bertjax_arrays(model, batch, **inputs)

    return ExtraCall(name, transformers, bertjax)


CALLS = (
    _call("order", _draw_mask),
    _call("order and targets", draw_order),
    _call("memory", lambda batch: {}, with_memory=True),
    _call("memory, order and targets", draw_order, with_memory=True),
)

# fmt: off
CASES = (
    Case("xlnet", "3 heads of 10, erf GELU, d_inner below d_model", "XLNetConfig",
         dict(vocab_size=91, d_model=30, n_layer=3, n_head=3, d_inner=22, ff_activation="gelu"),
         CLASSES, num_token_types=3, left_padding=True),
    Case("xlnet", "clamp_len 4, memory of 7 of which 5 are new, tanh GELU, one head of 14", "XLNetConfig",
         dict(vocab_size=50, d_model=14, n_layer=3, n_head=1, d_inner=33, ff_activation="gelu_new", clamp_len=4,
              mem_len=7, reuse_len=5, pad_token_id=0),
         ("XLNetLMHeadModel",), seq_len=11, num_token_types=4, left_padding=True, calls=CALLS),
    Case("xlnet", "attn_type uni, a memory without end, ReLU, another epsilon", "XLNetConfig",
         dict(vocab_size=40, d_model=20, n_layer=1, n_head=5, d_inner=24, ff_activation="relu", attn_type="uni",
              mem_len=None, layer_norm_eps=1e-5),
         # One sequence: transformers adds the masks of the whole batch.
         ("XLNetLMHeadModel",), batch_size=1, seq_len=8, num_token_types=2, left_padding=True, calls=CALLS),
    Case("xlnet", "bi_data, SiLU, no token types", "XLNetConfig",
         dict(vocab_size=40, d_model=12, n_layer=2, n_head=3, d_inner=25, ff_activation="silu", bi_data=True,
              mem_len=6, clamp_len=9),
         ("XLNetLMHeadModel",), batch_size=4, seq_len=9, num_token_types=0, calls=CALLS),
    Case("xlnet", "three labels, another activation of the summary", "XLNetConfig",
         dict(vocab_size=30, d_model=10, n_layer=1, n_head=1, d_inner=8, summary_activation="relu", num_labels=3),
         ("XLNetForSequenceClassification", "XLNetForTokenClassification"), num_token_types=2),
)
# fmt: on
