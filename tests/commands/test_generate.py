"""Tests `generate` and `score-choices` on folders of a causal model and of an encoder-decoder."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import bertjax
from bertjax.cli import main
from bertjax.commands.score_choices import ChoiceTask
from bertjax.config.encoder_decoder import EncoderDecoderConfig
from bertjax.config.model import EncoderConfig
from bertjax.experiment.load import load_generative
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.choices import score_continuations
from bertjax.models import encoder_decoder
from bertjax.models.model import abstract_params

Capture = pytest.CaptureFixture[str]
VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sees hears red green big small . film fine dull"
WORDS = VOCAB.split()
TOKENIZER = {
    "vocab.txt": "\n".join(WORDS).encode() + b"\n",
    "tokenizer_config.json": b'{"tokenizer_class": "BertTokenizer", "do_lower_case": true}',
}
ENCODER = EncoderConfig(
    vocab_size=len(WORDS), hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, max_position_embeddings=64
)
CHOICES = ["--choices", "good=fine", "bad=small dull"]
TEMPLATE = ["--template", "film {text} {choice}"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    draw = np.random.default_rng(0).standard_normal
    config = EncoderDecoderConfig.symmetric(ENCODER, family="bertjax", decoder_start_token_id=2)
    shapes = {
        "causal": abstract_params(ENCODER.replace(causal=True), ("mlm",)),
        "seq2seq": encoder_decoder.abstract_params(config),
    }
    params = {
        name: jax.tree.map(lambda leaf: 0.5 * draw(leaf.shape).astype(leaf.dtype), each)
        for name, each in shapes.items()
    }
    causal = PretrainedModel(ENCODER.replace(causal=True), params["causal"], ("mlm",), TOKENIZER)
    causal.save_pretrained(root / "causal")
    PretrainedEncoderDecoder(config, params["seq2seq"], {"max_length": 6}, TOKENIZER).save_pretrained(root / "seq2seq")
    return {name: root / name for name in shapes}


@pytest.mark.long
@pytest.mark.parametrize("name", ("causal", pytest.param("seq2seq", marks=pytest.mark.long)))
def test_texts_of_lines(
    name: str, folders: dict[str, Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["the cat sees", "the red dog hears the cat", "dog", "the big film"]
    lines = "\n".join(texts) + "\n"
    (tmp_path / "in.txt").write_text(lines)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    source, out = ("-", "-") if name == "seq2seq" else (str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    arguments = ["generate", "--model", str(folders[name]), "--in", source, "--out", out, "--max-new-tokens", "5"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    written = printed.out if out == "-" else Path(out).read_text()
    records = [json.loads(line) for line in written.splitlines()]
    assert [record["text"] for record in records] == texts and all(record["score"] < 0 for record in records)
    assert (printed.err if out == "-" else printed.out).startswith("4 texts, greedy search, ")
    model = bertjax.load_pretrained(folders[name])
    assert bertjax.generate(model, texts, max_new_tokens=5) == [record["generated"] for record in records]
    tokenizer = load_generative(folders[name]).tokenizer
    ids = tokenizer.encode_with_specials(texts[1])
    ids = ids[:-1] if name == "causal" else ids
    new = model.generate([ids], max_new_tokens=5, eos_token_id=3)[0, len(ids) if name == "causal" else 1 :]
    assert tokenizer.engine.decode(new.tolist(), skip_special_tokens=True) == records[1]["generated"]


def test_settings_are_read_by_their_types(folders: dict[str, Path], capsys: Capture) -> None:
    """Lists, None and 1e1 as in `--config.KEY=VALUE`; a wrong value is an error of one line."""
    model = str(folders["causal"])
    flags = ["--eos-token-id", "2,3", "--max-length", "None", "--max-new-tokens", "1e1", "--early-stopping", "never"]
    assert main(["generate", "--model", model, "the cat sees", *flags]) == 0
    settings = {"eos_token_id": [2, 3], "max_new_tokens": 10, "early_stopping": "never"}
    expected = bertjax.generate(model, ["the cat sees"], **settings)
    assert [json.loads(line)["generated"] for line in capsys.readouterr().out.splitlines()] == expected
    assert main(["generate", "--model", model, "the cat sees", "--num-beams", "two"]) == 2
    assert capsys.readouterr().err.startswith("bertjax generate: --num-beams")


def test_choices_by_likelihood(folders: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    rows = [("the cat sees", "good"), ("the dog", "bad"), ("red", "good"), ("big", "bad")]
    path, out = tmp_path / "test.tsv", tmp_path / "scores.jsonl"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    arguments = ["score-choices", "--model", str(folders["causal"]), "--in", str(path), *TEMPLATE, *CHOICES]
    assert main([*arguments, "--train", str(path), "--shots", "1", "--norm", "none", "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    accuracy = np.mean([record["predicted"] == record["label"] for record in records])
    assert printed[0].startswith("4 examples of 2 classes, 1 examples in the prompt")
    assert printed[1].startswith(f"accuracy {accuracy:.4f}")
    assert all(record["predicted"] == max(record["scores"], key=record["scores"].__getitem__) for record in records)
    shot = rows[np.random.default_rng(0).permutation(4)[0]]
    words = {"good": "fine", "bad": "small dull"}
    model, tokenizer = load_generative(folders["causal"])
    prompt = f"film {shot[0]} {words[shot[1]]}\n\nfilm the dog"
    ids = tokenizer.encode_with_specials(f"{prompt} small dull")[:-1]
    logits = np.asarray(model(np.array([ids])).logits)[0]
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = logs[-3, ids[-2]] + logs[-2, ids[-1]]
    np.testing.assert_allclose(records[1]["scores"]["bad"], expected, atol=1e-4)


@pytest.mark.long
def test_targets_of_an_encoder_decoder_have_likelihoods(folders: dict[str, Path]) -> None:
    model, tokenizer = load_generative(folders["seq2seq"])
    scored = score_continuations(model, tokenizer, ["the cat", "the red"], [" fine", " small dull"])
    assert scored.tokens.tolist() == [2, 3]
    source, target = tokenizer.encode_with_specials("the cat"), [2, WORDS.index("fine")]
    logits = np.asarray(model([source], None, [target]).logits)[0]
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(scored.totals[0], logs[0, target[1]] + logs[1, 3], atol=1e-4)
    result = bertjax.score_choices(
        model, [{"text": "cat"}], template="the {text} {choice}", choices={"a": "fine", "b": "dull"}, norm="none"
    )
    assert abs(result.scores[0, 0] - scored.totals[0]) < 1e-4 and result.metrics is None


BAD = {
    "both": (["generate", "the cat", "--in", "t.tsv"], "give texts, or a file of them with --in"),
    "setting": (["generate", "the cat", "--top-p", "2"], "--top-p must lie in (0, 1]"),
    "table": (["generate", "the cat", "--max-new-tokens", "99"], "the model has 64 positions"),
    "long": (["generate", "the cat " * 40], "a text of 81 tokens is longer than the 64 that the model reads"),
    "folder": (["generate", "the cat", "--out", "none/o.jsonl"], "none"),
    "template": (
        ["score-choices", "--in", "t.tsv", "--template", "{text}", *CHOICES],
        "--template must end with {choice}",
    ),
    "choices": (["score-choices", "--in", "t.tsv", *TEMPLATE, "--choices", "good"], "at least two labels"),
    "label": (["score-choices", "--in", "t.tsv", *TEMPLATE, "--choices", "good", "odd"], "t.tsv:3: label 'bad'"),
    "shots": (["score-choices", "--in", "t.tsv", *TEMPLATE, *CHOICES, "--shots", "2"], "--shots and --train belong"),
    "many": (
        ["score-choices", "--in", "t.tsv", *TEMPLATE, *CHOICES, "--shots", "9", "--train", "t.tsv"],
        "--shots 9 examples are more than the 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(
    name: str, folders: dict[str, Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.tsv").write_text("text\tlabel\nthe cat\tgood\nthe dog\tbad\n")
    arguments, message = BAD[name]
    assert main([*arguments, "--model", str(folders["causal"])]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_python_values_that_are_no_text_are_one_line(folders: dict[str, Path]) -> None:
    model = bertjax.load_pretrained(folders["causal"])

    def score(*inputs: Any, **more: Any) -> None:
        bertjax.score_choices(model, inputs, template="{text} {choice}", **{"choices": {"a": "x", "b": "y"}} | more)

    for call, message in (
        (lambda: bertjax.generate(model, ["a", 2.5]), r"^inputs\[1\]: field 'text' holds a number where text"),
        (lambda: bertjax.generate(model, None), "^inputs is nothing: give a list of texts"),
        (lambda: score({"text": "a"}, {"text": "\udc00"}), r"^inputs\[1\]: half a surrogate pair"),
        (lambda: score({"txt": "a"}), r"^inputs\[0\]: no field 'text' \(it has txt\)"),
        (lambda: score("a"), r"^inputs\[0\]: give a dict of fields, not 'a'"),
        (lambda: score({"text": "a"}, labels=[None]), r"^labels\[0\]: label None is not one of choices a, b"),
        (lambda: score({"text": "a"}, examples=[({"text": "b"}, "c")]), r"^examples\[0\]: label 'c' is not one of"),
        (lambda: score({"text": "a"}, choices={"a": None, "b": "y"}), "^choices a: field 'text' holds nothing"),
    ):
        with pytest.raises(bertjax.UserError, match=message):
            call()


def test_the_template_needs_a_field() -> None:
    with pytest.raises(bertjax.UserError, match="no field"):
        ChoiceTask("film {choice}", {"a": "fine", "b": "dull"})
