"""RoCBert: shapes and sounds of its tokens, which become part of the words of a BERT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.compare import random_transformers_model
from parity.families.bert import CASES
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.hf.keymaps.roc_bert import FAMILY

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CASE = CASES[0].__class__(
    "roc_bert",
    "2 layers",
    "RoCBertConfig",
    dict(
        vocab_size=41,
        hidden_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=30,
        shape_vocab_size=13,
        shape_embed_dim=6,
        pronunciation_vocab_size=9,
        pronunciation_embed_dim=10,
    ),
    tuple(FAMILY.architectures),
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *"abcdefghijkl", *(f"##{letter}" for letter in "abcdefghijkl"), *"中国人大学"]  # 34 of 41 rows
TEXTS = ["中国 abba 人 xyz", "学 k", "大 fed [MASK] Cab 中 Ärger ghi"]


def write_folder(theirs: Any, folder: Path, **changes: Any) -> Path:
    """Writes a model with its tokenizer; some of the words have no shape or sound of their own."""
    theirs.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RoCBertTokenizer"}))
    for name, size, words in (("shape", 13, WORDS[:31]), ("pronunciation", 9, WORDS[1:])):
        ids = {word: (7 * index + 3) % size for index, word in enumerate(words)}
        (folder / f"word_{name}.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def outputs_of(theirs: Any, folder: Path) -> tuple[dict[str, np.ndarray], Any]:
    """Returns the inputs of the texts, padded, and what `transformers` makes of them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(tokenizer).__name__ == "RoCBertTokenizer"
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert len({*inputs["input_shape_ids"].flatten().tolist()}) > 6
    is_choice = type(theirs).__name__.endswith("MultipleChoice")
    with torch.no_grad():
        out = theirs.eval()(**{name: each[None] if is_choice else each for name, each in inputs.items()})
    return {name: inputs[name].numpy() for name in ("input_ids", "attention_mask")}, out


@pytest.mark.parametrize("name", FAMILY.architectures)
def test_all_of_a_token_is_one_row_of_the_word_table(name: str, tmp_path: Path) -> None:
    theirs = random_transformers_model(CASE, name)
    folder = write_folder(theirs, tmp_path / "theirs")
    inputs, expected = outputs_of(theirs, folder)
    ours = bertjax.load_pretrained(folder)
    assert ours.config.family == "bert"
    assert load_tokenizer(folder).encode_with_specials(TEXTS[2]) == inputs["input_ids"][2].tolist()

    def check(model: Any) -> None:
        out, real = model(**inputs), inputs["attention_mask"][..., None] > 0
        if name.endswith("QuestionAnswering"):
            np.testing.assert_allclose(out.start_logits, expected.start_logits, atol=2e-5)
            np.testing.assert_allclose(out.end_logits, expected.end_logits, atol=2e-5)
        elif name == "RoCBertModel":
            states = (np.where(real, each, 0.0) for each in (out.last_hidden_state, expected.last_hidden_state))
            np.testing.assert_allclose(*states, atol=2e-5)
            np.testing.assert_allclose(out.pooler_output, expected.pooler_output, atol=2e-5)
        else:
            logits = np.asarray(out.logits)
            np.testing.assert_allclose(logits, expected.logits.reshape(logits.shape), atol=2e-5)

    check(ours)
    ours.save_pretrained(tmp_path / "ours")
    check(bertjax.load_pretrained(tmp_path / "ours"))
    assert not (tmp_path / "ours/word_shape.json").exists()
    (architecture,) = json.loads((tmp_path / "ours/config.json").read_text())["architectures"]
    native = "mlm" in FAMILY.architectures[name]
    assert architecture == ("BertjaxForMaskedLM" if native else name[3:])
    if not native and name != "RoCBertForMultipleChoice":
        back = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")(TEXTS, padding=True, return_tensors="pt")
        assert back["input_ids"].tolist() == inputs["input_ids"].tolist()
        out = getattr(transformers, architecture).from_pretrained(tmp_path / "ours")(**back)
        np.testing.assert_allclose(out[0].detach(), expected[0], atol=2e-5)


@pytest.mark.parametrize("absent", [("shape",), ("pronunciation",), ("shape", "pronunciation")])
def test_models_without_a_part(absent: tuple[str, ...], tmp_path: Path) -> None:
    config = {**CASE.config, **{f"enable_{part}": False for part in absent}}
    theirs = random_transformers_model(CASE.__class__(**{**vars(CASE), "config": config}), "RoCBertForMaskedLM")
    folder = write_folder(theirs, tmp_path)
    inputs, expected = outputs_of(theirs, folder)
    for part in absent:
        (folder / f"word_{part}.json").unlink()
    if len(absent) == 2:
        (folder / "vocab.txt").unlink()
        (folder / "tokenizer_config.json").unlink()
    model = bertjax.hf.pretrained.load_pretrained(folder)
    np.testing.assert_allclose(model(**inputs).logits, expected.logits, atol=2e-5)


def change(path: Path, content: str | None) -> None:
    """Replaces a file, removes it, or removes tensors with a name from it."""
    if content is None:
        path.unlink()
    elif path.suffix == ".json":
        path.write_text(content)
    else:
        save_file({name: array for name, array in load_file(path).items() if content not in name}, path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("word_shape.json", None, r"word_shape.json is missing: embeddings .* depend on the shapes and sounds"),
        ("word_pronunciation.json", None, r"word_pronunciation.json is missing"),
        ("vocab.txt", None, r"vocab.txt is missing"),
        ("model.safetensors", "word_embeddings", r"roc_bert.embeddings.word_embeddings.weight is missing"),
        ("word_shape.json", "{}", r"the id of \[UNK\] must be a whole number, not None"),
        ("word_shape.json", '{"[UNK]": 0, "a": 1.5}', "the id of a must be a whole number, not 1.5"),
        (
            "word_pronunciation.json",
            '{"[UNK]": 9}',
            r"word_pronunciation.json: id 9 is beyond pronunciation_vocab_size 9",
        ),
    ],
)
def test_files_of_shapes_and_sounds(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    folder = write_folder(random_transformers_model(CASE, "RoCBertForMaskedLM"), tmp_path)
    change(folder / name, content)
    with pytest.raises(UserError, match=message):
        bertjax.load_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concat_input": False}, "concat_input = False is not supported: a word table cannot hold shapes"),
        ({"shape_vocab_size": 12}, r"shape_embed.weight is float32 \[13, 6\] instead of \[12, 6\]"),
        ({"enable_shape": False}, r"map_inputs_layer.weight is float32 \[20, 36\] instead of \[20, 30\]"),
    ],
)
def test_configs_that_say_otherwise(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_folder(random_transformers_model(CASE, "RoCBertModel"), tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        bertjax.load_pretrained(folder)
