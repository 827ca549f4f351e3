"""Published folders with code of their authors, against that code's architecture written again in PyTorch.

Names and shapes of tensors are those of Alibaba-NLP/new-impl, jinaai/xlm-roberta-flash-implementation and
nomic-ai/contrastors. The published weights themselves are not at hand.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertjax.errors import UserError
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
functional = torch.nn.functional

V, D, N, F, L, S = 37, 24, 2, 20, 2, 13
Tensors = dict[str, np.ndarray]


def draw(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    normal = np.random.default_rng(0).standard_normal
    scale = {name: float(len(shape) == 1 and name.endswith("weight")) for name, shape in shapes.items()}
    return {name: (scale[name] + 0.2 * normal(shape)).astype("f4") for name, shape in shapes.items()}


def dense(name: str, out: int, width: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, width)} | ({f"{name}.bias": (out,)} if bias else {})


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (D,), f"{name}.bias": (D,)}


def batch() -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(1).integers(5, V, (3, S))
    mask = np.ones_like(ids)
    mask[1, 8:], mask[2, 1:] = 0, 0
    return np.where(mask > 0, ids, 1), mask


class Reference:
    """Forward passes over the tensors of a file."""

    def __init__(self, tensors: Tensors, epsilon: float):
        self.tensors = {name: torch.from_numpy(array) for name, array in tensors.items()}
        self.epsilon = epsilon

    def linear(self, name: str, x: Any) -> Any:
        return functional.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def norm(self, name: str, x: Any) -> Any:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return functional.layer_norm(x, (D,), weight, bias, self.epsilon)

    def attention(self, qkv: Any, mask: np.ndarray, frequencies: np.ndarray) -> Any:
        """Rotates and attends; `qkv` holds query, key and value one after the other [B, S, 3 D]."""
        q, k, v = (part.unflatten(-1, (N, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        angles = torch.arange(qkv.shape[1])[:, None] * torch.from_numpy(frequencies).float()[None]
        cosines, sines = (torch.cat([wave, wave], -1) for wave in (angles.cos(), angles.sin()))
        q, k = (x * cosines + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sines for x in (q, k))
        out = functional.scaled_dot_product_attention(q, k, v, torch.from_numpy(mask)[:, None, None].bool())
        return out.transpose(1, 2).flatten(2)


def frequencies(theta: float) -> np.ndarray:
    size = D // N
    return theta ** (-np.arange(0, size, 2) / size)


def folder_of(path: Path, values: dict[str, Any], tensors: Tensors) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(values))
    return path


def check(folder: Path, expected: dict[str, Any], back: Path, written: str) -> None:
    """Compares a folder with the reference, and what is written back with the class of `transformers`."""
    model, (ids, mask) = load_pretrained(folder), batch()
    out = model(ids, attention_mask=mask)
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(getattr(out, name)), value.numpy(), atol=2e-5, err_msg=name)
    save_pretrained(back, model.params, model.config, heads=model.heads)
    assert json.loads((back / "config.json").read_text())["architectures"] == [written]
    theirs = getattr(transformers, written).from_pretrained(back).eval()
    with torch.no_grad():
        output = theirs(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
    for name, value in expected.items():
        theirs_name = "logits" if name.endswith("logits") else name
        np.testing.assert_allclose(output[theirs_name].numpy(), value.numpy(), atol=2e-5, err_msg=name)


GTE = {
    "model_type": "new",
    "architectures": ["NewForMaskedLM"],
    "auto_map": {"AutoConfig": "configuration.NewConfig", "AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    **{"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F},
    **{"type_vocab_size": 1, "layer_norm_eps": 1e-3, "layer_norm_type": "layer_norm", "hidden_act": "gelu"},
    **{"position_embedding_type": "rope", "rope_theta": 500, "rope_scaling": {"type": "ntk", "factor": 2.0}},
    **{"pack_qkv": True, "unpad_inputs": False, "use_memory_efficient_attention": False, "pad_token_id": 1},
    **{"logn_attention_scale": False, "logn_attention_clip1": False, "max_position_embeddings": 40},
}


def gte_tensors(prefix: str = "new.", packed: bool = True) -> Tensors:
    shapes = {f"{prefix}embeddings.word_embeddings.weight": (V, D), **norm(f"{prefix}embeddings.LayerNorm")}
    shapes |= {f"{prefix}embeddings.token_type_embeddings.weight": (1, D)}
    for layer in (f"{prefix}encoder.layer.{i}" for i in range(L)):
        shapes |= dense(f"{layer}.attention.qkv_proj", 3 * D, D) | dense(f"{layer}.attention.o_proj", D, D)
        shapes |= dense(f"{layer}.mlp.up_gate_proj", 2 * F, D, False) | dense(f"{layer}.mlp.down_proj", D, F)
        shapes |= norm(f"{layer}.attn_ln") | norm(f"{layer}.mlp_ln")
    shapes |= dense("lm_head.dense", D, D) | norm("lm_head.norm") | {"lm_head.decoder.bias": (V,)}
    tensors = draw(shapes)
    if packed:
        return tensors
    for name in [name for name in tensors if "qkv_proj" in name]:
        parts = np.split(tensors.pop(name), 3)
        tensors |= {
            name.replace("qkv", each): np.ascontiguousarray(part) for each, part in zip("qkv", parts, strict=True)
        }
    return tensors


def gte_reference(tensors: Tensors, by: np.ndarray) -> dict[str, Any]:
    ref, (ids, mask) = Reference(tensors, 1e-3), batch()
    table = ref.tensors["new.embeddings.word_embeddings.weight"]
    x = table[ids] + ref.tensors["new.embeddings.token_type_embeddings.weight"][0]
    x = ref.norm("new.embeddings.LayerNorm", x)
    for layer in (f"new.encoder.layer.{i}" for i in range(L)):
        attended = ref.attention(ref.linear(f"{layer}.attention.qkv_proj", x), mask, by)
        x = ref.norm(f"{layer}.attn_ln", x + ref.linear(f"{layer}.attention.o_proj", attended))
        up, gate = ref.linear(f"{layer}.mlp.up_gate_proj", x).split(F, dim=-1)
        x = ref.norm(f"{layer}.mlp_ln", x + ref.linear(f"{layer}.mlp.down_proj", functional.gelu(gate) * up))
    x = ref.norm("lm_head.norm", functional.gelu(ref.linear("lm_head.dense", x)))
    return {"mlm_logits": x @ table.T + ref.tensors["lm_head.decoder.bias"]}


@pytest.mark.parametrize("scaling", [{"type": "ntk", "factor": 2.0}, None])
def test_gte(scaling: dict[str, Any] | None, tmp_path: Path) -> None:
    tensors, size = gte_tensors(), D // N
    by = frequencies(1000.0) / 2.0 ** (2 / size) if scaling else frequencies(500.0)
    expected = gte_reference(tensors, by)
    stored = tensors if scaling else gte_tensors(packed=False)
    folder = folder_of(tmp_path / "theirs", GTE | {"rope_scaling": scaling, "pack_qkv": bool(scaling)}, stored)
    check(folder, expected, tmp_path / "back", "GteForMaskedLM")


JINA = {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "auto_map": {
        "AutoConfig": "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA",
    },
    **{"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F},
    **{"type_vocab_size": 1, "layer_norm_eps": 1e-3, "position_embedding_type": "rotary", "rotary_emb_base": 500.0},
    **{"lora_adaptations": ["retrieval.query", "separation"], "lora_rank": 4, "use_flash_attn": True},
    **{"load_trained_adapters": True, "emb_pooler": "mean", "max_position_embeddings": 40, "pad_token_id": 1},
}
ADAPTED = ("word_embeddings", "token_type_embeddings", "Wqkv", "out_proj", "fc1", "fc2", "dense")


def jina_tensors() -> Tensors:
    shapes = {"roberta.embeddings.word_embeddings.weight": (V, D), **norm("roberta.emb_ln")}
    shapes |= {"roberta.embeddings.token_type_embeddings.weight": (1, D), **dense("roberta.pooler.dense", D, D)}
    for layer in (f"roberta.encoder.layers.{i}" for i in range(L)):
        shapes |= dense(f"{layer}.mixer.Wqkv", 3 * D, D) | dense(f"{layer}.mixer.out_proj", D, D)
        shapes |= dense(f"{layer}.mlp.fc1", F, D) | dense(f"{layer}.mlp.fc2", D, F)
        shapes |= norm(f"{layer}.norm1") | norm(f"{layer}.norm2")
    return draw(shapes)


def with_adapters(tensors: Tensors) -> Tensors:
    """Returns the tensors as they are stored next to the adapters of two tasks."""
    result = dict(tensors)
    for name in tensors:
        if name.endswith(".weight") and name.split(".")[-2] in ADAPTED:
            stem = f"{name.removesuffix('weight')}parametrizations.weight"
            result[f"{stem}.original"] = result.pop(name)
            result |= {f"{stem}.0.lora_{each}": np.ones((2, 4, D), np.float32) for each in "AB"}
    return result


def test_jina_v3_without_its_tasks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors, (ids, mask) = jina_tensors(), batch()
    ref = Reference(tensors, 1e-3)
    x = ref.tensors["roberta.embeddings.word_embeddings.weight"][ids]
    x = ref.norm("roberta.emb_ln", x + ref.tensors["roberta.embeddings.token_type_embeddings.weight"][0])
    for layer in (f"roberta.encoder.layers.{i}" for i in range(L)):
        attended = ref.attention(ref.linear(f"{layer}.mixer.Wqkv", x), mask, frequencies(500.0))
        x = ref.norm(f"{layer}.norm1", x + ref.linear(f"{layer}.mixer.out_proj", attended))
        inner = functional.gelu(ref.linear(f"{layer}.mlp.fc1", x))
        x = ref.norm(f"{layer}.norm2", x + ref.linear(f"{layer}.mlp.fc2", inner))
    pooled = torch.tanh(ref.linear("roberta.pooler.dense", x[:, 0]))
    folder = folder_of(tmp_path / "theirs", JINA, with_adapters(tensors))
    check(folder, {"last_hidden_state": x, "pooler_output": pooled}, tmp_path / "back", "JinaEmbeddingsV3Model")
    assert "the adapters of retrieval.query, separation are not read" in caplog.text


def test_the_dynamic_rotation_of_nomic(tmp_path: Path) -> None:
    """Beyond `max_trained_positions` the base grows with the length of the text (contrastors: modeling_nomic_bert)."""
    values: dict[str, Any] = {
        "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "activation_function": "swiglu",
        "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
        **{"vocab_size": V, "n_embd": D, "n_layer": 1, "n_head": N, "n_inner": F, "layer_norm_epsilon": 1e-3},
        **{"type_vocab_size": 2, "n_positions": 8192, "rotary_emb_base": 50.0, "rotary_scaling_factor": 2,
           "max_trained_positions": 8},
    }  # fmt: skip
    shapes = {"embeddings.word_embeddings.weight": (V, D), "embeddings.token_type_embeddings.weight": (2, D)}
    layer = "encoder.layers.0"
    shapes |= norm("emb_ln") | norm(f"{layer}.norm1") | norm(f"{layer}.norm2")
    shapes |= dense(f"{layer}.attn.Wqkv", 3 * D, D, False) | dense(f"{layer}.attn.out_proj", D, D, False)
    for name, out, width in (("fc11", F, D), ("fc12", F, D), ("fc2", D, F)):
        shapes |= dense(f"{layer}.mlp.{name}", out, width, False)
    tensors, size = draw(shapes), D // N
    model = load_pretrained(folder_of(tmp_path / "theirs", values, tensors))
    ref, ids = Reference(tensors, 1e-3), batch()[0]
    for length in (S, 8):
        base = 50.0 * (2 * length / 8 - 1) ** (size / (size - 2))
        x = ref.tensors["embeddings.word_embeddings.weight"][ids[:1, :length]]
        x = ref.norm("emb_ln", x + ref.tensors["embeddings.token_type_embeddings.weight"][0])
        qkv = ref.linear(f"{layer}.attn.Wqkv", x)
        attended = ref.attention(qkv, np.ones((1, length)), frequencies(base))
        x = ref.norm(f"{layer}.norm1", x + ref.linear(f"{layer}.attn.out_proj", attended))
        inner = ref.linear(f"{layer}.mlp.fc11", x) * functional.silu(ref.linear(f"{layer}.mlp.fc12", x))
        x = ref.norm(f"{layer}.norm2", x + ref.linear(f"{layer}.mlp.fc2", inner))
        padded = np.where(np.arange(S) < length, ids[:1], 0)
        ours = model(padded, attention_mask=np.arange(S)[None] < length).last_hidden_state
        np.testing.assert_allclose(np.asarray(ours)[:, :length], x.numpy(), atol=2e-5)
    save_pretrained(tmp_path / "back", model.params, model.config, heads=())
    theirs = transformers.NomicBertModel.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        output = theirs(torch.from_numpy(ids[:1])).last_hidden_state
    np.testing.assert_allclose(output.numpy(), np.asarray(model(ids[:1]).last_hidden_state), atol=2e-5)


QWEN = {"AutoModel": "modeling_qwen.Qwen2Model", "AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", None]}


def test_gte_qwen2(tmp_path: Path) -> None:
    sizes = dict(vocab_size=V, hidden_size=D, num_hidden_layers=L, num_attention_heads=N, intermediate_size=F)
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**sizes, num_key_value_heads=1, pad_token_id=1, is_causal=False)
    theirs = transformers.Qwen2Model(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"auto_map": QWEN}))
    (ids, mask), model = batch(), load_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        output = theirs(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
    np.testing.assert_allclose(np.asarray(model(ids, mask).last_hidden_state), output.numpy(), atol=2e-5)
    assert not model.config.causal
    del values["is_causal"]
    path.write_text(json.dumps(values | {"auto_map": QWEN}))
    with pytest.raises(UserError, match="is_causal must be there: write false if"):
        load_pretrained(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (GTE, {"auto_map": {"AutoModel": "other.Model"}}, "the model needs auto_map .code of its own., which is not"),
        (GTE, {"auto_map": {**GTE["auto_map"], "x": "evil.NewModel"}}, "the model needs auto_map"),
        (GTE, {"position_embedding_type": "absolute"}, "position_embedding_type = 'absolute' is not supported"),
        (GTE, {"layer_norm_type": "rms_norm"}, "layer_norm_type"),
        (GTE, {"logn_attention_scale": True}, "scores do not depend on the length"),
        (GTE, {"hidden_act": "silu"}, "blocks and head have one activation"),
        (GTE, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling: type = 'linear' is not supported"),
        (GTE, {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.5}}, "mixed_b"),
        (GTE, {"rope_scaling": {"type": "ntk"}}, "must be positive numbers"),
        (JINA, {"use_reg_tokens": True}, "no register tokens"),
        (JINA, {"position_embedding_type": "absolute"}, "positions are rotations"),
    ],
)
def test_other_code_and_variants_are_refused(
    values: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        load_pretrained(folder_of(tmp_path / "theirs", values | changes, {}))


def test_a_missing_size_is_named_and_an_unknown_key_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = {key: value for key, value in GTE.items() if key != "type_vocab_size"}
    with pytest.raises(UserError, match="type_vocab_size must be there, as in the published files"):
        load_pretrained(folder_of(tmp_path / "one", values, {}))
    with caplog.at_level(logging.WARNING, "bertjax"):
        load_pretrained(folder_of(tmp_path / "other", GTE | {"no_key": 1}, gte_tensors()))
    assert [each.rpartition(": ")[2] for each in caplog.messages] == ["no_key"]
