"""The same numbers as `transformers`, in both directions, for models of unusual sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertjax.hub import save as save_module  # noqa: E402
from bertjax.hub.load import PretrainedModel, load_pretrained  # noqa: E402
from bertjax.hub.save import save_pretrained  # noqa: E402
from bertjax.models.config import EncoderConfig  # noqa: E402
from bertjax.models.model import abstract_params  # noqa: E402

# float32 sums in another order; the largest gap seen is about 2e-6
TOLERANCE = 2e-5
HEADS = {
    "BertForPreTraining": ("pooler", "mlm", "pair"),
    "BertForMaskedLM": ("mlm",),
    "BertForNextSentencePrediction": ("pooler", "pair"),
    "BertModel": ("pooler",),
}
SIZES: list[dict[str, Any]] = [
    # head size 20, F < D, three types, odd number of layers, tanh GELU
    {
        "vocab_size": 101,
        "hidden_size": 60,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 44,
        "max_position_embeddings": 19,
        "type_vocab_size": 3,
        "hidden_act": "gelu_new",
    },
    # one layer, head size 7, erf GELU, another epsilon and pad id
    {
        "vocab_size": 64,
        "hidden_size": 35,
        "num_hidden_layers": 1,
        "num_attention_heads": 5,
        "intermediate_size": 97,
        "max_position_embeddings": 33,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "pad_token_id": 3,
    },
    {
        "vocab_size": 130,
        "hidden_size": 24,
        "num_hidden_layers": 5,
        "num_attention_heads": 1,
        "intermediate_size": 50,
        "max_position_embeddings": 16,
        "type_vocab_size": 1,
        "hidden_act": "relu",
    },
]
# every size with every head, and every class once
CASES = [pytest.param("BertForPreTraining", sizes, id=f"all-{sizes['hidden_act']}") for sizes in SIZES]
CASES += [pytest.param(name, sizes, id=name) for name, sizes in zip(HEADS, SIZES[:1] + SIZES, strict=True)][1:]


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export's own comparison of outputs compiles two more models; here transformers is the judge."""
    monkeypatch.setattr(save_module, "_compare_outputs", lambda *_: None)


def theirs(name: str, sizes: dict[str, Any], seed: int = 0) -> Any:
    """A random Hugging Face model whose biases and norms are random too: zeros would hide a swapped name."""
    torch.manual_seed(seed)
    model = getattr(transformers, name)(transformers.BertConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.08)
    return model


def random_params(config: EncoderConfig, heads: tuple[str, ...]) -> dict[str, Any]:
    draw = np.random.default_rng(2).standard_normal
    return jax.tree.map(lambda leaf: (0.2 * draw(leaf.shape)).astype(leaf.dtype), abstract_params(config, heads))


def batch(sizes: dict[str, Any], padded: bool, seed: int = 1) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed).integers
    shape = (3, sizes["max_position_embeddings"] - 2)
    mask = np.ones(shape, np.int64)
    if padded:
        mask[1, 5:], mask[2, 1:] = 0, 0
    return {
        "input_ids": draw(0, sizes["vocab_size"], shape),
        "attention_mask": mask,
        "token_type_ids": draw(0, sizes["type_vocab_size"], shape),
    }


def run_theirs(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with torch.no_grad():
        out = model(**{k: torch.from_numpy(v) for k, v in inputs.items()}, output_hidden_states=True)
        found = {"hidden_states": torch.stack(out.hidden_states)}
        found["last_hidden_state"] = out.hidden_states[-1]
        backbone = getattr(model, "bert", model)
        if backbone.pooler is not None:
            found["pooler_output"] = backbone.pooler(out.hidden_states[-1])
        kind = type(model).__name__
        if kind == "BertForPreTraining":
            found |= {"logits": out.prediction_logits, "pair_logits": out.seq_relationship_logits}
        elif kind == "BertForMaskedLM":
            found["logits"] = out.logits
        elif kind == "BertForNextSentencePrediction":
            found["pair_logits"] = out.logits
    return {name: value.numpy() for name, value in found.items()}


def assert_agree(ours: PretrainedModel, model: Any, inputs: dict[str, np.ndarray]) -> None:
    expected = run_theirs(model, inputs)
    out = ours(**inputs, output_hidden_states=True)
    assert {name for name, value in out._asdict().items() if value is not None} == set(expected)
    for name, value in expected.items():
        found = np.asarray(getattr(out, name))
        assert found.shape == value.shape, name
        assert np.abs(found - value).max() <= TOLERANCE, (name, np.abs(found - value).max())


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_theirs_loaded_here(tmp_path: Path, name: str, sizes: dict[str, Any]) -> None:
    model = theirs(name, sizes)
    model.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    assert ours.heads == HEADS[name]
    for padded in (False, True):
        assert_agree(ours, model, batch(sizes, padded))


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_ours_loaded_there(tmp_path: Path, name: str, sizes: dict[str, Any]) -> None:
    # drawn by us, at a padded vocabulary as training holds it
    config = EncoderConfig(
        vocab_size=sizes["vocab_size"],
        padded_vocab_size=192,
        hidden_size=sizes["hidden_size"],
        num_layers=sizes["num_hidden_layers"],
        num_heads=sizes["num_attention_heads"],
        intermediate_size=sizes["intermediate_size"],
        max_position_embeddings=sizes["max_position_embeddings"],
        type_vocab_size=sizes["type_vocab_size"],
        hidden_act=sizes["hidden_act"],
        layer_norm_eps=sizes.get("layer_norm_eps", 1e-12),
        pad_token_id=sizes.get("pad_token_id", 0),
    )
    params = random_params(config, HEADS[name])
    save_pretrained(tmp_path / "ours", params, config, heads=HEADS[name])
    model, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert_agree(PretrainedModel(config, params, HEADS[name]), model.eval(), batch(sizes, padded=True))
    # written again by them: the same tensors under the same names, and a config that says the same
    model.save_pretrained(tmp_path / "theirs")
    mine, back = (load_file(tmp_path / side / "model.safetensors") for side in ("ours", "theirs"))
    assert mine.keys() == back.keys()
    assert all(mine[key].tobytes() == back[key].tobytes() for key in mine)
    written, rewritten = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("ours", "theirs"))
    assert {key: rewritten[key] for key in written} == written


def test_auto_classes_find_their_way(tmp_path: Path) -> None:
    config = EncoderConfig(
        vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=20, max_position_embeddings=12
    )
    heads = HEADS["BertForPreTraining"]
    save_pretrained(tmp_path / "m", random_params(config, heads), config, heads=heads)
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "m")).__name__ == "BertModel"
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m")).__name__ == "BertForMaskedLM"
    assert type(transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "m")).__name__ == "BertForPreTraining"


def test_position_ids_are_used(tmp_path: Path) -> None:
    model = theirs("BertForMaskedLM", SIZES[0])
    model.save_pretrained(tmp_path)
    inputs = batch(SIZES[0], padded=True)
    inputs["position_ids"] = np.random.default_rng(3).integers(0, 19, inputs["input_ids"].shape)
    assert_agree(load_pretrained(tmp_path), model, inputs)


def test_shards_and_half_precision_of_theirs(tmp_path: Path) -> None:
    model = theirs("BertForPreTraining", SIZES[0])
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    assert_agree(load_pretrained(tmp_path / "shards"), model, batch(SIZES[0], padded=False))
    for kind in (torch.bfloat16, torch.float16):
        folder = tmp_path / str(kind)
        model.to(kind).save_pretrained(folder)
        assert_agree(load_pretrained(folder), model.float(), batch(SIZES[0], padded=False))


def test_a_classifier_is_read_without_its_head(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = theirs("BertForSequenceClassification", SIZES[0])
    model.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    assert ours.heads == ("pooler",)
    assert "classifier.bias, classifier.weight" in caplog.text and "BertForSequenceClassification" in caplog.text
    assert_agree(ours, model.bert, batch(SIZES[0], padded=True))
