"""MosaicBERT, DNABERT-2 and Jina v2, whose classes `transformers` lacks, against their architecture in PyTorch.

Names and shapes are those of mosaicml/examples:bert_layers.py and jinaai/jina-bert-implementation; the published
weights are not at hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertjax.errors import UserError
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
functional = torch.nn.functional

V, D, N, F, L, S = 37, 24, 3, 20, 2, 13
FACTORS = (0.0625, 0.00390625, 0.25)  # of two heads, and the first of four (arXiv:2108.12409, section 3)
SIZES = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F}
SIZES |= {"type_vocab_size": 2, "max_position_embeddings": 64}
COMMON: dict[str, Any] = {
    "model_type": "bert",
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu",
    "pad_token_id": 0,
    **SIZES,
}
MOSAIC = COMMON | {
    "architectures": ["BertForMaskedLM"],
    "alibi_starting_size": 512,
    "position_embedding_type": "absolute",
    "auto_map": {
        "AutoConfig": "mosaicml/mosaic-bert-base--configuration_bert.BertConfig",
        "AutoModelForMaskedLM": "mosaicml/mosaic-bert-base--bert_layers.BertForMaskedLM",
    },
}
JINA = COMMON | {
    "architectures": ["JinaBertForMaskedLM"],
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
    "emb_pooler": "mean",
    "attn_implementation": None,
    "model_max_length": 64,
    "auto_map": {
        "AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig",
        "AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel",
    },
}
DNA = {"AutoModel": "bert_layers.BertModel", "AutoConfig": "configuration_bert.BertConfig"}
Tensors = dict[str, np.ndarray]


def tensors_of(packed: bool, head: str, prefix: str = "bert.") -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}embeddings.word_embeddings.weight": (V, D)}

    def dense(name: str, out: int, width: int, bias: bool = True) -> None:
        shapes.update({f"{name}.weight": (out, width)} | ({f"{name}.bias": (out,)} if bias else {}))

    def norm(name: str) -> None:
        shapes.update({f"{name}.weight": (D,), f"{name}.bias": (D,)})

    shapes[f"{prefix}embeddings.token_type_embeddings.weight"] = (2, D)
    norm(f"{prefix}embeddings.LayerNorm")
    for layer in (f"{prefix}encoder.layer.{i}" for i in range(L)):
        for part, out in (("Wqkv", 3 * D),) if packed else (("query", D), ("key", D), ("value", D)):
            dense(f"{layer}.attention.self.{part}", out, D)
        dense(f"{layer}.attention.output.dense", D, D)
        dense(f"{layer}.mlp.gated_layers", 2 * F, D, False)
        dense(f"{layer}.mlp.wo", D, F)
        norm(f"{layer}.attention.output.LayerNorm")
        norm(f"{layer}.mlp.layernorm")
    if head == "mlm":
        dense("cls.predictions.transform.dense", D, D)
        norm("cls.predictions.transform.LayerNorm")
        shapes["cls.predictions.decoder.bias"] = (V,)
    else:
        dense(f"{prefix}pooler.dense", D, D)
    normal = np.random.default_rng(0).standard_normal
    return {
        name: (float(len(shape) == 1 and name.endswith("weight")) + 0.2 * normal(shape)).astype("f4")
        for name, shape in shapes.items()
    }


def reference(tensors: Tensors, ids: Any, mask: Any, types: Any, act: Any) -> dict[str, Any]:
    weights = {name.removeprefix("bert."): torch.from_numpy(array) for name, array in tensors.items()}

    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name: str, x: Any) -> Any:
        return functional.layer_norm(x, (D,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-3)

    positions = torch.arange(ids.shape[1])
    bias = -torch.tensor(FACTORS)[:, None, None] * (positions[:, None] - positions[None]).abs()
    bias = bias[None].masked_fill(~torch.from_numpy(mask)[:, None, None].bool(), -torch.inf)
    table = weights["embeddings.word_embeddings.weight"]
    x = norm("embeddings.LayerNorm", table[ids] + weights["embeddings.token_type_embeddings.weight"][types])
    for layer in (f"encoder.layer.{i}" for i in range(L)):
        name = f"{layer}.attention.self"
        packed = f"{name}.Wqkv.weight" in weights
        qkv = linear(f"{name}.Wqkv", x).chunk(3, -1) if packed else [linear(f"{name}.{part}", x) for part in
                                                                  ("query", "key", "value")]  # fmt: skip
        q, k, v = (part.unflatten(-1, (N, -1)).transpose(1, 2) for part in qkv)
        weight = (q @ k.transpose(2, 3) / (D // N) ** 0.5 + bias).softmax(-1)
        out = linear(f"{layer}.attention.output.dense", (weight @ v).transpose(1, 2).flatten(2))
        x = norm(f"{layer}.attention.output.LayerNorm", out + x)
        gated = linear(f"{layer}.mlp.gated_layers", x)
        x = norm(f"{layer}.mlp.layernorm", linear(f"{layer}.mlp.wo", act(gated[..., :F]) * gated[..., F:]) + x)
    result = {"last_hidden_state": x}
    if "pooler.dense.weight" in weights:
        result["pooler_output"] = torch.tanh(linear("pooler.dense", x[:, 0]))
    if "cls.predictions.transform.dense.weight" in weights:
        hidden = functional.gelu(linear("cls.predictions.transform.dense", x))
        hidden = norm("cls.predictions.transform.LayerNorm", hidden)
        result["mlm_logits"] = hidden @ table.T + weights["cls.predictions.decoder.bias"]
    return result


def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1).integers
    ids, mask = draw(3, V, (3, S)), np.ones((3, S), int)
    mask[1, 8:], mask[2, 1:] = 0, 0
    return np.where(mask > 0, ids, 0), mask, draw(0, 2, (3, S))


def folder_of(path: Path, values: dict[str, Any], tensors: Tensors) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("values", "packed", "head", "prefix", "act"),
    [
        pytest.param(MOSAIC, True, "mlm", "bert.", functional.gelu, id="MosaicBERT"),
        pytest.param(
            MOSAIC | {"auto_map": DNA, "architectures": ["BertModel"]}, True, "", "", functional.gelu, id="DNABERT-2"
        ),
        pytest.param(JINA, False, "", "", functional.gelu, id="Jina v2 without its head"),
        pytest.param(JINA | {"feed_forward_type": "reglu"}, False, "mlm", "bert.", functional.relu, id="Jina v2, ReLU"),
    ],
)
def test_the_published_layout(
    values: dict[str, Any], packed: bool, head: str, prefix: str, act: Any, tmp_path: Path
) -> None:
    tensors, (ids, mask, types) = tensors_of(packed, head, prefix), batch()
    model = load_pretrained(folder_of(tmp_path / "theirs", values, tensors))
    expected, real = reference(tensors, ids, mask, types, act), mask > 0
    out = model(ids, attention_mask=mask, token_type_ids=types)
    assert {name for name in ("mlm_logits", "pooler_output") if getattr(out, name) is not None} == {*expected} - {
        "last_hidden_state"
    }
    for name, value in expected.items():
        ours, theirs = np.asarray(getattr(out, name)), value.numpy()
        at = real if ours.shape[:2] == real.shape else slice(None)
        np.testing.assert_allclose(ours[at], theirs[at], atol=2e-5, err_msg=name)
    save_pretrained(tmp_path / "back", model.params, model.config, heads=model.heads)
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (written["model_type"], written["relative_bias"]) == ("bertjax", "linear")
    again = load_pretrained(tmp_path / "back")(ids, attention_mask=mask, token_type_ids=types)
    np.testing.assert_array_equal(np.asarray(again.last_hidden_state), np.asarray(out.last_hidden_state))


@pytest.mark.parametrize("raw", [False, True])
def test_a_folder_of_composer_has_no_auto_map(raw: bool, tmp_path: Path) -> None:
    """Also with the names as they are in the checkpoint (`raw`)."""
    tensors, (ids, mask, types) = tensors_of(True, "mlm"), batch()
    expected = reference(tensors, ids, mask, types, functional.gelu)["mlm_logits"].numpy()
    named = {"model." * raw + name: tensor for name, tensor in tensors.items()}
    values = {key: value for key, value in MOSAIC.items() if key != "auto_map"}
    values |= {"normalization": "layernorm", "head_pred_act": "gelu", "deterministic_fa2": False}
    model = load_pretrained(folder_of(tmp_path / "theirs", values, named))
    ours = np.asarray(model(ids, attention_mask=mask, token_type_ids=types).mlm_logits)
    np.testing.assert_allclose(ours[mask > 0], expected[mask > 0], atol=2e-5)


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (MOSAIC, {"auto_map": {"AutoModel": "evil/mosaic--bert_layers.BertModel"}}, "the model needs auto_map"),
        (MOSAIC, {"hidden_act": "relu"}, "the head and most blocks have the exact GELU"),
        (MOSAIC, {"normalization": "rmsnorm"}, "normalization = 'rmsnorm' is not supported: norms are centered"),
        (JINA, {"feed_forward_type": "original"}, "known are geglu and reglu"),
        (JINA, {"position_embedding_type": "absolute"}, "positions are linear biases"),
        (
            JINA,
            {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}},
            "auto_map",
        ),
    ],
)
def test_other_code_and_variants_are_refused(
    values: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        load_pretrained(folder_of(tmp_path / "theirs", values | changes, {}))
