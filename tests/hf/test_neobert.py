"""NeoBERT, whose classes `transformers` lacks, against its published architecture in PyTorch.

The names and shapes of tensors are those of the released file (huggingface.co/chandar-lab/NeoBERT, 172 tensors), the
computation is that of its model.py and rotary.py: complex products of neighboring numbers, no mask but padding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("torch")

import torch
from torch.nn import functional

from bertjax.data.tokenizer_training import train_tokenizer
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained

D, N, L, V, C = 24, 2, 3, 43, 3
WIDTH = 16  # two thirds of 22, rounded up to a multiple of 8
VALUES: dict[str, Any] = {
    "model_type": "neobert",
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": L,
    "num_attention_heads": N,
    "intermediate_size": 24,
    "dim_head": D // N,
    "max_length": 30,
    "norm_eps": 1e-3,
    "pad_token_id": 2,
    "decoder_init_range": 0.02,
    "kwargs": {"trust_remote_code": True},
    "trust_remote_code": True,
    "auto_map": {"AutoModel": "model.NeoBERT"},
}
HEADS = {
    "NeoBERTLMHead": {"decoder.weight": (V, D), "decoder.bias": (V,)},
    "NeoBERTForSequenceClassification": {
        "dense.weight": (D, D),
        "dense.bias": (D,),
        "classifier.weight": (C, D),
        "classifier.bias": (C,),
    },
    "NeoBERT": {},
}
LAYER = {
    "qkv.weight": (3 * D, D),
    "wo.weight": (D, D),
    "ffn.w12.weight": (2 * WIDTH, D),
    "ffn.w3.weight": (D, WIDTH),
    "attention_norm.weight": (D,),
    "ffn_norm.weight": (D,),
}
Tensors = dict[str, Any]


def tensors_of(name: str) -> dict[str, np.ndarray]:
    prefix = "" if name == "NeoBERT" else "model."
    shapes = {f"{prefix}encoder.weight": (V, D), f"{prefix}layer_norm.weight": (D,), **HEADS[name]}
    shapes |= {f"{prefix}transformer_encoder.{i}.{key}": shape for i in range(L) for key, shape in LAYER.items()}
    draw = np.random.default_rng(0).standard_normal
    return {key: (("norm" in key) + 0.15 * draw(shape)).astype("f4") for key, shape in sorted(shapes.items())}


def rotate(x: Any) -> Any:
    """Rotates the pairs (2i, 2i + 1) of every head [B, S, N, H]."""
    width = x.shape[-1]
    angles = torch.outer(torch.arange(x.shape[1]), 10_000.0 ** (-torch.arange(0, width, 2) / width))
    turns = torch.polar(torch.ones_like(angles), angles)[None, :, None]
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns).flatten(3)


def reference(tensors: Tensors, ids: Any, mask: Any) -> list[Any]:
    """Returns the embeddings and the output of every layer, the last one normalized."""
    weights = {key.removeprefix("model."): torch.from_numpy(array) for key, array in tensors.items()}
    x = weights["encoder.weight"][ids]
    states = [x]

    def norm(name: str, x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + VALUES["norm_eps"]) * weights[name]

    for i in range(L):
        layer = f"transformer_encoder.{i}"
        heads = (norm(f"{layer}.attention_norm.weight", x) @ weights[f"{layer}.qkv.weight"].T).view(*x.shape[:2], N, -1)
        q, k, v = heads.chunk(3, dim=-1)
        q, k, v = (each.transpose(1, 2) for each in (rotate(q), rotate(k), v))
        attended = functional.scaled_dot_product_attention(q, k, v, mask[:, None, None].bool())
        x = x + attended.transpose(1, 2).flatten(2) @ weights[f"{layer}.wo.weight"].T
        gate, up = (norm(f"{layer}.ffn_norm.weight", x) @ weights[f"{layer}.ffn.w12.weight"].T).chunk(2, dim=-1)
        x = x + (functional.silu(gate) * up) @ weights[f"{layer}.ffn.w3.weight"].T
        states.append(x)
    return [*states[:-1], norm("layer_norm.weight", x)]


def head_outputs(name: str, tensors: Tensors, hidden: Any) -> dict[str, Any]:
    if name == "NeoBERT":
        return {}
    if name == "NeoBERTLMHead":
        return {"mlm_logits": hidden @ tensors["decoder.weight"].T + tensors["decoder.bias"]}
    dense = torch.tanh(hidden[:, 0] @ torch.from_numpy(tensors["dense.weight"]).T + tensors["dense.bias"])
    return {"sequence_logits": dense @ torch.from_numpy(tensors["classifier.weight"]).T + tensors["classifier.bias"]}


@pytest.mark.parametrize("name", HEADS)
def test_published_layout_in_both_directions(tmp_path: Path, name: str) -> None:
    tensors, theirs, back = tensors_of(name), tmp_path / "theirs", tmp_path / "back"
    theirs.mkdir()
    save_file(tensors, theirs / "model.safetensors")
    labels = {"id2label": {str(i): f"label {i}" for i in range(C)}}
    (theirs / "config.json").write_text(json.dumps(VALUES | labels | {"architectures": [name]}))
    model = load_pretrained(theirs)

    ids = np.random.default_rng(1).integers(3, V, (3, 17))
    mask = np.ones_like(ids)
    mask[0, 9:], mask[1, 1:] = 0, 0
    ids[mask == 0] = 2
    out = model(ids, attention_mask=mask, output_hidden_states=True)
    expected = reference(tensors, torch.from_numpy(ids), torch.from_numpy(mask))
    for ours, state in zip(out.hidden_states, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), state.numpy(), atol=2e-5)
    for key, value in head_outputs(name, tensors, expected[-1]).items():
        np.testing.assert_allclose(np.asarray(getattr(out, key)), np.asarray(value), atol=2e-5)

    save_pretrained(back, model.params, model.config, heads=model.heads)
    written, values = load_file(back / "model.safetensors"), json.loads((back / "config.json").read_text())
    assert written.keys() == tensors.keys()
    assert all(np.array_equal(written[key], tensors[key]) for key in tensors)
    assert values["architectures"] == [name] and values["auto_map"]["AutoModel"] == "chandar-lab/NeoBERT--model.NeoBERT"
    unread = {"decoder_init_range", "kwargs", "trust_remote_code", "auto_map"}
    assert {key: values[key] for key in VALUES.keys() - unread} == {key: VALUES[key] for key in VALUES.keys() - unread}


def test_an_export_is_read_back_without_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its config.json names the authors' code, for which `transformers` asks on the terminal by default."""
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or "n")
    save_file(tensors_of("NeoBERT"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(VALUES | {"architectures": ["NeoBERT"]}))
    model = load_pretrained(tmp_path)
    tokenizer = train_tokenizer(["the dog sees the cat"], model="wordpiece", family="bert", vocab_size=V)
    save_pretrained(
        tmp_path / "back", model.params, model.config, heads=(), tokenizer=tokenizer, sample_texts=["the cat"]
    )
    assert not questions
