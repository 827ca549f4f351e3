"""Folders that MosaicML's Composer made of checkpoints of ModernBERT; those of MosaicBERT: `test_alibi_bert.py`.

Names are those of AnswerDotAI/ModernBERT (src/bert_layers, with the values of its yaml files of ModernBERT-base), and
the keys those of the config.json that Composer stores. The numbers are those of ModernBERT's class in `transformers`.
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

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

V, D, N, F, L = 37, 24, 2, 20, 3
FLEX: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],  # of bert-base-uncased, from whose config.json a run starts
    **{"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F},
    **{"layer_norm_eps": 1e-12, "max_position_embeddings": 512, "position_embedding_type": "absolute"},
    **{"type_vocab_size": 2, "pad_token_id": 0, "initializer_range": 0.02, "hidden_act": "gelu", "use_cache": True},
    **{"hidden_dropout_prob": 0.1, "classifier_dropout": None, "gradient_checkpointing": False},
    **{"attention_layer": "rope", "bert_layer": "prenorm", "embedding_layer": "sans_pos", "mlp_layer": "glu"},
    **{"normalization": "layernorm", "norm_kwargs": {"eps": 1e-3, "bias": False}, "skip_first_prenorm": True},
    **{"attention_probs_dropout_prob": 0.0, "attn_out_dropout_prob": 0.1, "embed_dropout_prob": 0.0},
    **{"attn_qkv_bias": False, "attn_out_bias": False, "mlp_in_bias": False, "mlp_out_bias": False},
    **{"embed_norm": True, "final_norm": True, "decoder_bias": True, "mlp_dropout_prob": 0.0},
    **{"head_pred_act": "gelu", "head_pred_bias": False, "head_pred_norm": True, "head_pred_dropout": 0.0},
    **{"head_class_act": "silu", "head_class_bias": False, "head_class_norm": False, "head_class_dropout": 0.0},
    **{"rotary_emb_dim": None, "rotary_emb_base": 160000.0, "rotary_emb_scale_base": None},
    **{"rotary_emb_interleaved": False, "local_attn_rotary_emb_base": 10000.0, "local_attn_rotary_emb_dim": None},
    **{"sliding_window": 4, "global_attn_every_n_layers": 2, "encoder_layer": "base", "padding": "unpadded"},
    **{"initial_attention_layer": None, "initial_bert_layer": None, "initial_mlp_layer": None},
    **{"loss_function": "fa_cross_entropy", "loss_kwargs": {"reduction": "mean"}, "pooling_type": "cls"},
}
WIDE = {"sliding_window": -1, "global_attn_every_n_layers": -1, "local_attn_rotary_emb_base": -1}
BIASED = {"attn_qkv_bias": True, "attn_out_bias": True, "mlp_in_bias": True, "mlp_out_bias": True}
BIASED |= {"head_pred_bias": True, "norm_kwargs": {"eps": 1e-3, "bias": True}, "head_pred_act": "silu"}
SIZES = {key: FLEX[key] for key in list(FLEX)[2:7]}


def folder_of(path: Path, values: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(values))
    return path


def flex_tensors(model: Any, raw: bool) -> dict[str, np.ndarray]:
    """Returns the weights of ModernBERT under the names of its training code, `raw` as they are in a checkpoint."""
    names = {}
    for name, tensor in model.state_dict().items():
        inner = name.replace("model.", "bert.", 1).replace("bert.layers.", "bert.encoder.layers.")
        names["model." * raw + inner] = tensor.numpy().copy()
    return names


@pytest.mark.parametrize(
    ("changes", "theirs", "raw"),
    [
        pytest.param({}, {}, False, id="as ModernBERT"),
        pytest.param(
            WIDE | BIASED,
            {"global_attn_every_n_layers": 1, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
            | {"norm_bias": True, "classifier_activation": "silu"},
            True,
            id="global, with biases, names of a checkpoint",
        ),
    ],
)
def test_flex_bert_is_modernbert(
    changes: dict[str, Any], theirs: dict[str, Any], raw: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = transformers.ModernBertConfig(
        **SIZES,
        **{"norm_eps": 1e-3, "local_attention": 4, "pad_token_id": 0, "attn_implementation": "eager"},
        **({"global_attn_every_n_layers": 2, "classifier_activation": "gelu"} | theirs),
    )
    torch.manual_seed(0)
    reference = transformers.ModernBertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    model = load_pretrained(folder_of(tmp_path / "theirs", FLEX | changes, flex_tensors(reference, raw)))
    assert model.config.family == "modernbert"
    assert {record.message.partition(": ")[2] for record in caplog.records if record.levelname == "WARNING"} == {
        "for its dropout of the output of attention set model.attention_output_dropout=0.1"
    }
    ids = np.random.default_rng(1).integers(1, V, (3, 13))
    mask = np.ones_like(ids)
    mask[1, 8:], mask[2, 1:] = 0, 0
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()
    ours = np.asarray(model(ids, attention_mask=mask).mlm_logits)
    np.testing.assert_allclose(ours[mask > 0], expected[mask > 0], atol=2e-5)


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (FLEX, {"attention_layer": "base"}, "attention_layer = 'base' is not supported: positions are rotations"),
        (FLEX, {"bert_layer": "parallel_prenorm"}, "bert_layer = 'parallel_prenorm'"),
        (FLEX, {"normalization": "rmsnorm"}, "normalization = 'rmsnorm'"),
        (FLEX, {"initial_mlp_layer": "mlp"}, "all layers are of one kind"),
        (FLEX, {"attn_qkv_bias": True}, "attn_qkv_bias = True is not supported: attn_out_bias is False"),
        (FLEX, {"global_attn_every_n_layers": -1}, "must be at least 1, as layer 0 is global, not -1"),
        (FLEX, {"norm_kwargs": {"eps": 1e-5, "device": "cpu"}}, "norm_kwargs must have eps and bias alone"),
        (FLEX, {"auto_map": {"AutoModel": "evil--model.FlexBert"}}, "the model needs auto_map"),
        ({key: value for key, value in FLEX.items() if key != "rotary_emb_base"}, {}, "rotary_emb_base must be there"),
    ],
)
def test_other_options_are_refused(
    values: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        load_pretrained(folder_of(tmp_path / "theirs", values | changes, {}))


def test_the_checkpoint_itself_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "ep1.pt").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match=r"ep1.pt is a file of torch, which is not read.*docs/continued.md"):
        load_pretrained(tmp_path / "ep1.pt")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "theirs", FLEX, {})
    save_file({"bert.final_norm.weight": np.ones(D, "f4")}, folder / "model.safetensors")
    assert json.loads((folder / "config.json").read_text())["bert_layer"] == "prenorm"
    with pytest.raises(UserError, match=r"missing: model\.embeddings\.tok_embeddings\.weight"):
        load_pretrained(folder)
