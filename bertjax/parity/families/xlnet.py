"""XLNet: `transformers.XLNetConfig`. Any token type will do there: scores only ask whether two are equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertjax.parity.cases import Arrays, Case, ExtraCall

CLASSES = (
    "XLNetLMHeadModel",
    "XLNetForSequenceClassification",
    "XLNetForTokenClassification",
    "XLNetForQuestionAnsweringSimple",
    "XLNetModel",
)
_TARGETS = 4


def draw_order(batch: Arrays) -> Arrays:
    """`perm_mask` [B, S, S] of a random order of prediction, and `target_mapping` [B, T, S] of its last tokens.

    A token that is not hidden sees no target; a target sees the targets before it. A target may stand in the padding,
    and see nothing.
    """
    rows, length = batch["input_ids"].shape
    order = np.stack([np.random.default_rng(row).permutation(length) for row in range(rows)])
    rank = np.maximum(order - (length - _TARGETS), -1)  # -1: not hidden
    hidden = (rank[:, None, :] >= 0) & (rank[:, :, None] <= rank[:, None, :])
    places = np.argsort(order, axis=1)[:, -_TARGETS:]
    return {"perm_mask": hidden.astype(np.float32), "target_mapping": np.eye(length, dtype=np.float32)[places]}


def next_rows(batch: Arrays) -> Arrays:
    """Other rows of the same shape, that go on from these."""
    return batch | {"input_ids": batch["input_ids"][:, ::-1].copy()}


def their_arrays(out: Any) -> Arrays:
    """Whatever a class returns; the memory [L, B, M, D], the two streams' states apart."""
    memory = np.stack([layer.numpy() for layer in out.mems]).swapaxes(1, 2)
    found = {"memory": memory} | {name: out[name].numpy() for name in ("logits", "last_hidden_state") if name in out}
    states = [state.numpy() for state in out.hidden_states]
    if len(states) == len(out.mems) + 1:
        return found | _numbered("hidden_states", states)
    return found | _numbered("hidden_states", states[::2]) | _numbered("target hidden_states", states[1::2])


def our_arrays(out: Any, with_logits: bool) -> Arrays:
    """The same of ours."""
    last = {"logits": out.mlm_logits} if with_logits else {"last_hidden_state": out.last_hidden_state}
    found = {name: np.asarray(value) for name, value in (last | {"memory": out.memory}).items()}
    found |= _numbered("hidden_states", np.asarray(out.hidden_states))
    if out.target_hidden_states is None:
        return found
    return found | _numbered("target hidden_states", np.asarray(out.target_hidden_states))


def _numbered(name: str, states: Any) -> Arrays:
    return {f"{name}[{index}]": state for index, state in enumerate(states)}


def _run_theirs(model: Any, batch: Arrays, **more: Any) -> Any:
    from bertjax.parity.compare import run_transformers

    options = {name: more.pop(name) for name in ("mems",) if name in more}
    return run_transformers(model, batch | more, output_hidden_states=True, use_mems=True, **options)


def _run_ours(model: Any, batch: Arrays, **more: Any) -> Arrays:
    out = model(**batch, output_hidden_states=True, output_memory=True, **more)
    return our_arrays(out, "mlm" in model.heads)


def _their_second(model: Any, batch: Arrays, **more: Any) -> Arrays:
    mems = _run_theirs(model, batch).mems
    return their_arrays(_run_theirs(model, next_rows(batch), mems=mems, **more))


def _our_second(model: Any, batch: Arrays, **more: Any) -> Arrays:
    memory = model(**batch, output_memory=True).memory
    return _run_ours(model, next_rows(batch), memory=memory, **more)


def _without_targets(batch: Arrays) -> Arrays:
    return {"perm_mask": draw_order(batch)["perm_mask"]}


CALLS = (
    ExtraCall(
        "order",
        lambda model, batch: their_arrays(_run_theirs(model, batch, **_without_targets(batch))),
        lambda model, batch: _run_ours(model, batch, **_without_targets(batch)),
    ),
    ExtraCall(
        "order and targets",
        lambda model, batch: their_arrays(_run_theirs(model, batch, **draw_order(batch))),
        lambda model, batch: _run_ours(model, batch, **draw_order(batch)),
    ),
    ExtraCall("memory", _their_second, _our_second),
    ExtraCall(
        "memory, order and targets",
        lambda model, batch: _their_second(model, batch, **draw_order(batch)),
        lambda model, batch: _our_second(model, batch, **draw_order(batch)),
    ),
)

CASES = (
    Case(
        "xlnet",
        "3 heads of 10, erf GELU, d_inner below d_model",
        "XLNetConfig",
        {"vocab_size": 91, "d_model": 30, "n_layer": 3, "n_head": 3, "d_inner": 22, "ff_activation": "gelu"},
        CLASSES,
        num_token_types=3,
        left_padding=True,
    ),
    Case(
        "xlnet",
        "clamp_len 4, memory of 7 of which 5 are new, tanh GELU, one head of 14",
        "XLNetConfig",
        {
            "vocab_size": 50,
            "d_model": 14,
            "n_layer": 3,
            "n_head": 1,
            "d_inner": 33,
            "ff_activation": "gelu_new",
            "clamp_len": 4,
            "mem_len": 7,
            "reuse_len": 5,
            "pad_token_id": 0,
        },
        ("XLNetLMHeadModel",),
        length=11,
        num_token_types=4,
        left_padding=True,
        calls=CALLS,
    ),
    Case(
        "xlnet",
        "attn_type uni, a memory without end, ReLU, another epsilon",
        "XLNetConfig",
        {
            "vocab_size": 40,
            "d_model": 20,
            "n_layer": 1,
            "n_head": 5,
            "d_inner": 24,
            "ff_activation": "relu",
            "attn_type": "uni",
            "mem_len": None,
            "layer_norm_eps": 1e-5,
        },
        ("XLNetLMHeadModel",),
        rows=1,  # theirs adds the masks of all rows into that of one
        length=8,
        num_token_types=2,
        left_padding=True,
        calls=CALLS,
    ),
    Case(
        "xlnet",
        "bi_data, SiLU, no token types",
        "XLNetConfig",
        {
            "vocab_size": 40,
            "d_model": 12,
            "n_layer": 2,
            "n_head": 3,
            "d_inner": 25,
            "ff_activation": "silu",
            "bi_data": True,
            "mem_len": 6,
            "clamp_len": 9,
        },
        ("XLNetLMHeadModel",),
        rows=4,
        length=9,
        num_token_types=0,
        calls=CALLS,
    ),
    Case(
        "xlnet",
        "three labels, another activation of the summary",
        "XLNetConfig",
        {
            "vocab_size": 30,
            "d_model": 10,
            "n_layer": 1,
            "n_head": 1,
            "d_inner": 8,
            "summary_activation": "relu",
            "num_labels": 3,
        },
        ("XLNetForSequenceClassification", "XLNetForTokenClassification"),
        num_token_types=2,
    ),
)
