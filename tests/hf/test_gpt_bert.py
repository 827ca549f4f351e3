"""GPT-BERT against its definition written down in PyTorch, with weights drawn here; averages over depth."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_ltg_bert import BUCKETS, VALUES, C, D, F, L, N, S, Tensors, V, batch, folder_of

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.experiment.growth import _require_growth
from bertjax.experiment.shrink import smaller_config
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.save import save_pretrained
from bertjax.models.decoding import can_cache
from bertjax.training.flops import flops_per_token

torch = pytest.importorskip("torch")
lab = pytest.importorskip("gpt_bert_lab")

GPT_BERT: dict[str, Any] = VALUES | {
    "architectures": ["LtgbertForMaskedLM"],
    "auto_map": {
        "AutoConfig": "configuration_ltgbert.LtgbertConfig",
        "AutoModelForCausalLM": "ltg/gpt-bert-babylm-base--modeling_ltgbert.LtgbertForCausalLM",
        "AutoModelForMaskedLM": "modeling_ltgbert.LtgbertForMaskedLM",
    },
}
SEQUENCE = {"architectures": ["LtgbertForSequenceClassification"], "temperature": 1.0}
CAUSAL = {"architectures": ["LtgbertForCausalLM"], "is_decoder": True}
CONFIG = EncoderConfig(
    vocab_size=V, hidden_size=D, num_layers=2, num_heads=N, intermediate_size=F, norm_placement="sub",
    attention_gate="gelu", depth_weighted_average=True,
)  # fmt: skip


def tensors_of(head: str) -> Tensors:
    """Returns random weights under the names of the file."""
    shapes: dict[str, tuple[int, ...]] = {"embedding.word_embedding.weight": (V, D)}
    shapes |= {"embedding.relative_embedding": (2 * BUCKETS - 1, D)}
    shapes |= {f"embedding.relative_layer_norm.{leaf}": (D,) for leaf in ("weight", "bias")}
    for layer in range(L):
        attention, block = f"transformer.attention_layers.{layer}", f"transformer.mlp_layers.{layer}.mlp"
        for name, width in (("in_proj_qk", 2 * D), ("in_proj_vg", 2 * D), ("out_proj", D)):
            shapes |= {f"{attention}.{name}.weight": (width, D), f"{attention}.{name}.bias": (width,)}
        shapes |= {f"{block}.1.weight": (2 * F, D), f"{block}.4.weight": (D, F)}
    shapes |= {f"transformer.dwa_modules.alphas.{index}": (index + 2,) for index in range(2 * L)}
    prefix, outputs = ("classifier", V) if head == "mlm" else ("head", C)
    shapes |= {f"{prefix}.nonlinearity.1.weight": (D, D), f"{prefix}.nonlinearity.1.bias": (D,)}
    shapes |= {f"{prefix}.nonlinearity.5.weight": (outputs, D), f"{prefix}.nonlinearity.5.bias": (outputs,)}
    draw = np.random.default_rng(0).standard_normal
    tensors = {name: (0.3 * draw(shape)).astype("f4") for name, shape in sorted(shapes.items())}
    if head == "mlm":
        tensors["classifier.nonlinearity.5.weight"] = tensors["embedding.word_embedding.weight"]
    return tensors


@pytest.mark.parametrize(("values", "head"), [({}, "mlm"), (CAUSAL, "mlm"), (SEQUENCE, "sequence")])
def test_outputs_are_those_of_the_definition(values: dict[str, Any], head: str, tmp_path: Path) -> None:
    tensors = tensors_of(head)
    model = load_pretrained(folder_of(tmp_path / "theirs", GPT_BERT | values, tensors))
    ids, mask = batch()
    weights = {name: torch.from_numpy(array) for name, array in tensors.items()}
    last = lab.run(weights, torch.from_numpy(ids), torch.from_numpy(mask) > 0, L, N, BUCKETS, S)
    out, real = model(ids, attention_mask=mask), mask > 0
    if head == "sequence":
        expected = lab.scores_of(weights, "head", last[:, 0]).numpy()
        np.testing.assert_allclose(np.asarray(out.sequence_logits), expected, atol=2e-5)
    else:
        expected = lab.scores_of(weights, "classifier", last).numpy()
        logits = np.asarray(out.mlm_logits)[:, 1:]  # at the token itself; theirs are at the one before
        np.testing.assert_allclose(logits[real[:, 1:]], expected[:, :-1][real[:, 1:]], atol=2e-5)
    save_pretrained(tmp_path / "back", model.params, model.config, heads=model.heads)
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (written["norm_placement"], written["attention_gate"]) == ("sub", "gelu")
    again = load_pretrained(tmp_path / "back")(ids, attention_mask=mask)
    np.testing.assert_array_equal(np.asarray(again.last_hidden_state), np.asarray(out.last_hidden_state))


@pytest.mark.parametrize(
    ("changes", "dropped", "message"),
    [
        ({"is_decoder": True}, "", "only encoders are supported"),
        ({"temperature": 2.0}, "", "scores are not divided"),
        ({}, "transformer.dwa_modules.alphas.1", "alphas"),
        ({}, "transformer.attention_layers.0.in_proj_vg.bias", "missing: transformer.attention_layers.0.in_proj_vg"),
        ({"num_hidden_layers": L + 1}, "", r"missing: .*misshapen: transformer.dwa_modules.alphas"),
    ],
)
def test_other_code_and_contradicting_tensors_are_refused(
    changes: dict[str, Any], dropped: str, message: str, tmp_path: Path
) -> None:
    tensors = {name: array for name, array in tensors_of("mlm").items() if name != dropped}
    with pytest.raises(UserError, match=message):
        load_pretrained(folder_of(tmp_path / "theirs", GPT_BERT | changes, tensors))


def test_averages_over_depth_count_and_keep_their_layers() -> None:
    plain = dataclasses.replace(CONFIG, depth_weighted_average=False)
    assert flops_per_token(CONFIG, 0.0, 1.0) - flops_per_token(plain, 0.0, 1.0) == 6 * D * (2 + 3 + 4 + 5)
    gateless = dataclasses.replace(plain, attention_gate=None)
    assert flops_per_token(plain, 0.0, 1.0) - flops_per_token(gateless, 0.0, 1.0) == 6 * 2 * D * D
    assert smaller_config(CONFIG, 2, {"num_heads": 1}).num_heads == 1
    with pytest.raises(UserError, match="layers cannot be removed: with depth_weighted_average"):
        smaller_config(CONFIG, 1, {})
    with pytest.raises(UserError, match="every layer has weights of all before it"):
        _require_growth(CONFIG, dataclasses.replace(CONFIG, num_layers=4), "tile")
    causal = dataclasses.replace(CONFIG, causal=True)
    assert not can_cache(causal) and can_cache(dataclasses.replace(causal, depth_weighted_average=False))
    with pytest.raises(UserError, match="averages know one stream of blocks alone"):
        dataclasses.replace(CONFIG, conv_kernel_size=3)
