"""LTG-BERT and NorBERT 3 against numbers of their authors' code, with weights drawn here.

`ltg_bert_numbers.json` was computed by the classes of ltgoslo/norbench (norquad/modeling_norbert.py, the same as
modeling_ltgbert.py of ltgoslo/ltg-bert) and, as `halves`, with the projection of distances of ltgoslo/ltg-bert
(babylm/train/model.py): logits of every sixth token.
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
from bertjax.models.disentangled_attention import log_bucket

NUMBERS = json.loads(Path(__file__).with_name("ltg_bert_numbers.json").read_text())
V, D, N, F, L, C, S, BUCKETS = 23, 24, 3, 20, 2, 3, 42, 6
SIZES = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": L, "num_attention_heads": N, "intermediate_size": F}
VALUES: dict[str, Any] = {
    **SIZES,
    **{"max_position_embeddings": S, "position_bucket_size": BUCKETS, "layer_norm_eps": 1e-3},
    **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "output_all_encoded_layers": True},
    "id2label": {str(index): f"label {index}" for index in range(C)},
}
NORBERT = VALUES | {
    "architectures": ["NorbertForMaskedLM"],
    "auto_map": {
        "AutoConfig": "configuration_norbert.NorbertConfig",
        "AutoModel": "ltg/norbert3-base--modeling_norbert.NorbertModel",
        "AutoModelForMaskedLM": "modeling_norbert.NorbertForMaskedLM",
    },
}
LTG = VALUES | {
    "model_type": "bert",
    "pad_token_id": 4,
    "architectures": ["LtgBertForMaskedLM"],
    "auto_map": {
        "AutoConfig": "configuration_ltgbert.LtgBertConfig",
        "AutoModelForMaskedLM": "modeling_ltgbert.LtgBertForMaskedLM",
    },
}
SEQUENCE = {"architectures": ["NorbertForSequenceClassification"]}
Tensors = dict[str, np.ndarray]


def tensors_of(head: str) -> Tensors:
    """Returns weights under the names of the file, with the buffers that it holds."""
    shapes: dict[str, tuple[int, ...]] = {"embedding.word_embedding.weight": (V, D)}
    shapes |= {"embedding.relative_embedding": (2 * BUCKETS - 1, D)}
    shapes |= {f"embedding.relative_layer_norm.{leaf}": (D,) for leaf in ("weight", "bias")}
    for layer in (f"transformer.layers.{index}" for index in range(L)):
        for name, width in (("in_proj_qk", 2 * D), ("in_proj_v", D), ("out_proj", D)):
            shapes |= {f"{layer}.attention.{name}.weight": (width, D), f"{layer}.attention.{name}.bias": (width,)}
        shapes |= {f"{layer}.attention.post_layer_norm.{leaf}": (D,) for leaf in ("weight", "bias")}
        shapes |= {f"{layer}.mlp.mlp.1.weight": (2 * F, D), f"{layer}.mlp.mlp.4.weight": (D, F)}
    prefix, outputs = ("classifier", V) if head == "mlm" else ("head", C)
    shapes |= {f"{prefix}.nonlinearity.1.weight": (D, D), f"{prefix}.nonlinearity.1.bias": (D,)}
    shapes |= {f"{prefix}.nonlinearity.5.weight": (outputs, D), f"{prefix}.nonlinearity.5.bias": (outputs,)}
    draw = np.random.default_rng(0).standard_normal
    tensors = {
        name: ("norm.weight" in name) + (0.3 * draw(shape)).astype("f4") for name, shape in sorted(shapes.items())
    }
    if head == "mlm":
        tensors["classifier.nonlinearity.5.weight"] = tensors["embedding.word_embedding.weight"]
    return {name: np.asarray(array, np.float32) for name, array in tensors.items()}


def with_buffers(tensors: Tensors) -> Tensors:
    rows = np.arange(S)
    indices = log_bucket(rows[:, None] - rows, BUCKETS, S) + BUCKETS - 1
    names = [f"transformer.layers.{index}.attention.position_indices" for index in range(L)]
    return tensors | {name: indices.astype(np.int64) for name in names}


def batch() -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(1).integers(5, V, (3, S))
    mask = np.ones_like(ids)
    mask[1, 25:], mask[2, 1:] = 0, 0
    return np.where(mask > 0, ids, 4), mask


def folder_of(path: Path, values: dict[str, Any], tensors: Tensors) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("values", "head", "name"),
    [
        pytest.param(NORBERT, "mlm", "interleaved", id="NorBERT 3"),
        pytest.param(LTG | {"share_att_key": True}, "mlm", "halves", id="LTG-BERT of BabyLM"),
        pytest.param(NORBERT | SEQUENCE, "sequence", "sequence", id="classifier"),
    ],
)
def test_logits_are_those_of_the_authors_code(values: dict[str, Any], head: str, name: str, tmp_path: Path) -> None:
    tensors = tensors_of(head)
    model = load_pretrained(folder_of(tmp_path / "theirs", values, with_buffers(tensors)))
    ids, mask = batch()
    out, expected = model(ids, attention_mask=mask), np.asarray(NUMBERS[name])
    if head == "sequence":
        np.testing.assert_allclose(np.asarray(out.sequence_logits), expected, atol=2e-5)
    else:
        real = mask[:, ::6] > 0
        np.testing.assert_allclose(np.asarray(out.mlm_logits)[:, ::6][real], expected[real], atol=2e-5)
    save_pretrained(tmp_path / "back", model.params, model.config, heads=model.heads)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["norm_placement"] == "normformer"
    again = load_pretrained(tmp_path / "back")(ids, attention_mask=mask)
    np.testing.assert_array_equal(np.asarray(again.last_hidden_state), np.asarray(out.last_hidden_state))


def test_distances_beyond_the_table_share_its_ends(tmp_path: Path) -> None:
    """As in the authors' code, which clips them: the row that DeBERTa has for them alone equals the next."""
    model = load_pretrained(folder_of(tmp_path / "theirs", NORBERT, tensors_of("mlm")))
    table = model.params["encoder"]["relative"]["embedding"]
    assert table.shape == (2 * BUCKETS, D)
    np.testing.assert_array_equal(table[0], table[1])


@pytest.mark.parametrize(
    ("values", "change", "message"),
    [
        (LTG, None, "share_att_key must be there: write false if modeling_ltgbert.py splits"),
        (NORBERT | {"auto_map": {"AutoModel": "evil/norbert3-base--modeling_norbert.NorbertModel"}}, None, "auto_map"),
        (LTG | {"auto_map": {"AutoModel": "modeling_ltgbert2.LtgBertForMaskedLM"}}, None, "the model needs auto_map"),
        (
            NORBERT | {"position_bucket_size": 8},
            None,
            "position_indices differs from 8 buckets on either side up to 42",
        ),
        (NORBERT, ("mlp.mlp.3.weight", (F,)), r"in some layers only: transformer\.layers\.\{L\}\.mlp\.mlp\.3\.weight"),
        (NORBERT, ("attention.in_proj_vg.weight", (D, D)), "unexpected: transformer.layers.0.attention.in_proj_vg"),
    ],
)
def test_other_code_and_contradicting_tensors_are_refused(
    values: dict[str, Any], change: tuple[str, tuple[int, ...]] | None, message: str, tmp_path: Path
) -> None:
    tensors = with_buffers(tensors_of("mlm"))
    if change is not None:
        tensors[f"transformer.layers.0.{change[0]}"] = np.ones(change[1], np.float32)
    with pytest.raises(UserError, match=message):
        load_pretrained(folder_of(tmp_path / "theirs", values, tensors))
