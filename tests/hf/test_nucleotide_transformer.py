"""Nucleotide Transformer v2 against the EsmForMaskedLM of `transformers`, whose blocks are replaced by gated ones.

Names and keys are those of modeling_esm.py and config.json of InstaDeepAI/nucleotide-transformer-v2-50m-3mer. As there,
the gate is the first half of `intermediate.dense`, and the file holds a table of positions that is not read.
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
transformers = pytest.importorskip("transformers")

V, D, N, F, L, S = 37, 24, 3, 20, 2, 19
SIZES = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F}
VALUES: dict[str, Any] = {
    "model_type": "esm",
    "architectures": ["EsmForMaskedLM", "EsmForTokenClassification", "EsmForSequenceClassification"],
    "auto_map": {
        "AutoConfig": "esm_config.EsmConfig",
        "AutoModelForMaskedLM": "modeling_esm.EsmForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_esm.EsmForSequenceClassification",
    },
    **SIZES,
    **{"add_bias_fnn": False, "layer_norm_eps": 1e-3, "position_embedding_type": "rotary", "token_dropout": False},
    **{"max_position_embeddings": 64, "mask_token_id": 2, "pad_token_id": 1, "tie_word_embeddings": False},
    **{"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0, "emb_layer_norm_before": False},
    **{"is_folding_model": False, "esmfold_config": None, "vocab_list": None, "use_cache": False},
}


class Gated(torch.nn.Module):
    """The gated layer of the authors' code."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(D, 2 * F, bias=bias)

    def forward(self, hidden: Any) -> Any:
        gate, inner = self.dense(hidden).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * inner


def reference_of(bias: bool) -> Any:
    """Returns the class of `transformers` with gated blocks and random weights."""
    keys = ("layer_norm_eps", "position_embedding_type", "mask_token_id", "pad_token_id", "tie_word_embeddings")
    config = transformers.EsmConfig(**SIZES, **{key: VALUES[key] for key in keys}, max_position_embeddings=64)
    model = transformers.EsmForMaskedLM(config)
    torch.manual_seed(0)
    for layer in model.esm.encoder.layer:
        layer.intermediate = Gated(bias)
        layer.output.dense = torch.nn.Linear(F, D, bias=bias)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model.eval()


def folder_of(path: Path, values: dict[str, Any], model: Any) -> Path:
    """Writes the folder as published: the rotation is in every layer, positions have a table."""
    tensors = {name: each.numpy() for name, each in model.state_dict().items() if not name.endswith("inv_freq")}
    rates = (10_000.0 ** (-np.arange(0, D // N, 2) / (D // N))).astype("f4")
    name = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    tensors |= {name.format(layer): rates.copy() for layer in range(L)}
    tensors |= {"esm.embeddings.position_embeddings.weight": np.ones((64, D), "f4")}
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize("bias", [False, True])
def test_the_published_layout(bias: bool, tmp_path: Path) -> None:
    reference = reference_of(bias)
    model = load_pretrained(folder_of(tmp_path / "theirs", VALUES | {"add_bias_fnn": bias}, reference))
    ids = np.random.default_rng(1).integers(3, V, (3, S))
    mask = np.ones_like(ids)
    mask[1, 8:], mask[2, 1:] = 0, 0
    ids = np.where(mask > 0, ids, 1)
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()
    out = model(ids, attention_mask=mask)
    np.testing.assert_allclose(np.asarray(out.mlm_logits)[mask > 0], expected[mask > 0], atol=2e-5)
    save_pretrained(tmp_path / "back", model.params, model.config, heads=model.heads)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "bertjax"
    again = load_pretrained(tmp_path / "back")(ids, attention_mask=mask)
    np.testing.assert_array_equal(np.asarray(again.mlm_logits), np.asarray(out.mlm_logits))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoModel": "evil/nucleotide--modeling_esm.EsmModel"}}, "the model needs auto_map"),
        ({"add_bias_fnn": None}, "add_bias_fnn must be true or false"),
        ({"add_bias_fnn": True}, r"missing: esm\.encoder\.layer\.0\.intermediate\.dense\.bias"),
        ({"intermediate_size": 2 * F}, r"misshapen: esm\.encoder\.layer\.0\.intermediate\.dense\.weight"),
        ({"position_embedding_type": "relative_key"}, "positions are absolute or rotary"),
    ],
)
def test_other_code_and_contradicting_tensors_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        load_pretrained(folder_of(tmp_path / "theirs", VALUES | changes, reference_of(False)))
