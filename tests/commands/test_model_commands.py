"""Tests `fill-mask`, `embed`, `eval-sts` and `eval-minimal-pairs` on a work directory and on its export."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from lab import Finished

from bertjax.cli import main
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.sentence_transformers import Pooling, save_sentence_transformers

Capture = pytest.CaptureFixture[str]
SENTENCES = ["The cat sees the dog.", "the river", "The teacher paints the garden."]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def say(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    """Sets the standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))


@pytest.fixture(scope="module")
def export(finished: Finished) -> Path:
    return finished.workdir / "export"


def test_fill_mask_of_a_run_and_of_its_export(finished: Finished, export: Path, capsys: Capture) -> None:
    printed = []
    for folder in (finished.workdir, export):
        assert run("fill-mask", "the cat [MASK] the dog.", "--model", folder, "a <mask> [mask]", "--top-k", 3) == 0
        printed.append(capsys.readouterr().out)
    first, fillings, second, one, two = printed[0].splitlines()
    assert (first, second) == ("the cat [MASK] the dog.", "a <mask> [mask]")
    assert len(fillings.split()) == 6 and one.startswith("    1: ") and two.startswith("    2: ")
    assert printed[0] == printed[1]
    from_training = finished.printed.splitlines()
    shown = from_training[from_training.index("the cat [MASK] the dog.") + 1]
    assert shown.split()[0] == fillings.split()[0], "the same as at the end of the training"


def test_texts_may_be_typed(export: Path, tmp_path: Path, capsys: Capture) -> None:
    """Without --out vectors are lines of JSON on the standard output; what a file of the same texts gives."""
    typed = [*SENTENCES[:2], "after a flag"]
    assert run("embed", *typed[:1], "--model", export, *typed[1:]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == typed
    (tmp_path / "t.txt").write_text("\n".join(typed) + "\n")
    assert run("embed", "--model", export, "--in", tmp_path / "t.txt", "--out", tmp_path / "v.npy") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), np.array([line["vector"] for line in lines], np.float32))
    capsys.readouterr()
    for more in ((), ("a text", "--in", tmp_path / "t.txt")):
        assert run("embed", "--model", export, *more) == 2
        assert capsys.readouterr().err == "bertjax embed: give texts, or a file of them with --in\n"
    assert run("predict", "--model", export, "a text") == 2
    assert "the model has no task" in capsys.readouterr().err


def test_a_tokenizer_needs_no_config(export: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "words.txt").write_text("catheter\n")
    words = ("--add-words", tmp_path / "words.txt", "--out", tmp_path / "larger")
    assert run("tokenizer", *words) == 2
    assert "give a config with --config, or a tokenizer with --tokenizer" in capsys.readouterr().err
    assert run("tokenizer", "--tokenizer", export, *words) == 0
    assert "1 words added as 1 tokens: catheter" in capsys.readouterr().out
    before, after = load_tokenizer(export), load_tokenizer(tmp_path / "larger")
    assert after.tokens == [*before.tokens, "catheter"]


def test_fill_mask_from_the_standard_input(export: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "The [MASK] sees naïve dogs.\r\n\nthe [MASK]\n".encode())
    assert run("fill-mask", "--model", export, "--jsonl", "--top-k", 2) == 0
    result = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["sentence"] for each in result] == ["The [MASK] sees naïve dogs.", "the [MASK]"]
    assert [[len(mask) for mask in each["masks"]] for each in result] == [[2], [2]]
    say(monkeypatch, b"b [MASK]\n")
    assert run("fill-mask", "a [MASK]", "-", "--model", export) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line[0] != " "] == ["a [MASK]", "b [MASK]"]


def test_fill_mask_shows_what_the_network_says(export: Path, capsys: Capture) -> None:
    """Two masks in a sentence, in a padded batch: the probabilities are those of a plain forward pass."""
    sentence = "the [MASK] sees the [MASK] ."
    assert run("fill-mask", sentence, "the [MASK] " * 9, "--model", export, "--jsonl", "--top-k", 4) == 0
    output = json.loads(capsys.readouterr().out.splitlines()[0])["masks"]
    model, tokenizer = load_pretrained(export), load_tokenizer(export)
    ids = np.array([tokenizer.encode_with_specials(sentence)])
    logits = np.asarray(model(ids).logits, np.float64)[0, ids[0] == tokenizer.mask_id]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for mask, share in zip(output, shares, strict=True):
        best = np.argsort(-share)[:4]
        assert [each["token"] for each in mask] == [tokenizer.decode([token]).strip() for token in best]
        np.testing.assert_allclose([each["probability"] for each in mask], share[best], atol=1e-6)


BAD = {
    "no model": (["fill-mask", "a [MASK]", "--model", "nowhere"], "nowhere holds no model: give a Hugging Face folder"),
    "no mask": (["fill-mask", "nothing", "--model", "EXPORT"], "no [MASK] in 'nothing'"),
    "too long": (["fill-mask", "[MASK]" + " a" * 80, "--model", "EXPORT"], "a sentence of 83 tokens is longer"),
    "top": (["fill-mask", "a [MASK]", "--model", "EXPORT", "--top-k", "0"], "--top-k must be at least 1"),
    "option": (["fill-mask", "a [MASK]", "--model", "EXPORT", "--topp", "3"], "unknown argument --topp"),
    "ending": (["embed", "--model", "EXPORT", "--in", "t.txt", "--out", "v.csv"], "--out v.csv must end in one of"),
    "no texts": (
        ["embed", "--model", "EXPORT", "--in", "none.txt", "--out", "v.npy"],
        "none.txt: cannot be read: No such",
    ),
    "empty": (["embed", "--model", "EXPORT", "--in", "empty.txt", "--out", "v.npy"], "empty.txt holds no text"),
    "latin": (
        ["embed", "--model", "EXPORT", "--in", "latin.txt", "--out", "v.npy"],
        "latin.txt:2: invalid UTF-8 (byte 0xef",
    ),
    "field": (
        ["embed", "--model", "EXPORT", "--in", "p.jsonl", "--out", "v.npy"],
        "p.jsonl:1: no field 'text' (it has",
    ),
    "no number": (
        ["embed", "--model", "EXPORT", "--in", "n.jsonl", "--out", "v.npy"],
        "n.jsonl:2: field 'text' holds a number",
    ),
    "json": (["embed", "--model", "EXPORT", "--in", "b.jsonl", "--out", "v.npy"], "b.jsonl:1: broken JSON"),
    "length": (
        ["embed", "--model", "EXPORT", "--in", "t.txt", "--out", "v.npy", "--max-length", "65"],
        "--max-length=65 is beyond the 64 tokens",
    ),
    "zero": (
        ["embed", "--model", "EXPORT", "--in", "t.txt", "--out", "v.npy", "--max-length", "0"],
        "at least 1, not 0",
    ),
    "folder": (["embed", "--model", "EXPORT", "--in", "t.txt", "--out", "none/v.npy"], "no folder none for --out"),
    "batch": (
        ["embed", "--model", "EXPORT", "--in", "t.txt", "--out", "v.npy", "--batch-tokens", "0"],
        "--batch-tokens",
    ),
    "pair": (
        ["eval-minimal-pairs", "--model", "EXPORT", "--pairs", "half.jsonl"],
        "half.jsonl:2: no field 'sentence_bad'",
    ),
    "blank": (
        ["eval-minimal-pairs", "--model", "EXPORT", "--pairs", "blank.jsonl"],
        "blank.jsonl:1: sentence_good is blank",
    ),
    "by": (
        ["eval-minimal-pairs", "--model", "EXPORT", "--pairs", "p.jsonl", "--group-by", "x"],
        "p.jsonl:1: no field 'x'",
    ),
    "no text": (
        ["eval-minimal-pairs", "--model", "EXPORT", "--pairs", "odd.jsonl"],
        "odd.jsonl:1: a sentence holds nothing",
    ),
    "column": (
        ["eval-sts", "--model", "EXPORT", "--pairs", "jsonl:p.jsonl", "--text-column", "sentence_good"],
        "p.jsonl:1",
    ),
    "csv": (["embed", "--model", "EXPORT", "--in", "t.csv", "--out", "v.npy"], "--in t.csv is not a file of lines"),
    "out": (
        ["eval-minimal-pairs", "--model", "EXPORT", "--pairs", "p.jsonl", "--out", "none/s.jsonl"],
        "no folder none for",
    ),
    "no pairs": (
        ["eval-minimal-pairs", "--model", "EXPORT", "--pairs", "empty.txt"],
        "empty.txt: no pairs; a line looks",
    ),
    "score": (
        ["eval-minimal-pairs", "--model", "EXPORT", "--pairs", "p.jsonl", "--score", "likelihood"],
        "both sides of a word",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(
    name: str, export: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pair = json.dumps({"sentence_good": "The cat.", "sentence_bad": "Cat the."})
    files = {
        "t.txt": b"a\n",
        "empty.txt": b"",
        "latin.txt": "fine\nna\u00efve\n".encode("latin-1"),
        "n.jsonl": b'{"text": "a"}\n{"text": 1}\n',
        "b.jsonl": b"{]\n",
        "p.jsonl": pair.encode(),
        "half.jsonl": (pair + '\n{"sentence_good": "The cat."}\n').encode(),
        "odd.jsonl": b'{"sentence_good": "\\u0001", "sentence_bad": "a"}',
        "blank.jsonl": b'{"sentence_good": " ", "sentence_bad": "a"}',
    }
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    arguments, message = BAD[name]
    assert run(*[str(export) if argument == "EXPORT" else argument for argument in arguments]) == 2
    output = capsys.readouterr().err
    assert message in output and output.count("\n") == 1, output
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files), "no temporary files remain"


def test_no_sentence_at_all(export: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, b"\n")
    assert run("fill-mask", "--model", export) == 2 and "no input" in capsys.readouterr().err


def test_a_model_without_the_head(export: Path, tmp_path: Path, capsys: Capture) -> None:
    model = load_pretrained(export)
    save_sentence_transformers(tmp_path / "encoder", model, Pooling())
    assert run("fill-mask", "a [MASK]", "--model", tmp_path / "encoder") == 2
    assert "this model has no head for masked words (its heads: pooler)" in capsys.readouterr().err


def test_embed_writes_one_vector_a_text(export: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "t.txt").write_text("\n".join([*SENTENCES, "", "a " * 100]) + "\n")
    records = [{"id": number, "body": text} for number, text in enumerate([*SENTENCES, "", "a " * 100])]
    with gzip.open(tmp_path / "t.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, records)))
    assert run("embed", "--model", export, "--in", tmp_path / "t.txt", "--out", tmp_path / "v.npz") == 0
    output = capsys.readouterr().out
    assert (
        output.startswith("5 texts, the mean of the tokens, 32 numbers each")
        and "1 of them were longer than 64" in output
    )
    assert run("embed", "--model", export, "--in", tmp_path / "t.txt", "--out", tmp_path / "v.npy") == 0
    jsonl = [
        "embed",
        "--model",
        export,
        "--in",
        tmp_path / "t.jsonl.gz",
        "--text-column",
        "body",
        "--out",
        tmp_path / "v.jsonl",
    ]
    assert run(*jsonl) == 0
    vectors = np.load(tmp_path / "v.npz")["vectors"]
    assert vectors.shape == (5, 32) and vectors.dtype == np.float32
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [{"id": line["id"], "body": line["body"]} for line in lines] == records
    np.testing.assert_array_equal(np.array([line["vector"] for line in lines], np.float32), vectors)
    model, tokenizer = load_pretrained(export), load_tokenizer(export)
    alone = model(np.array([tokenizer.encode_with_specials(SENTENCES[0])])).last_hidden_state
    np.testing.assert_allclose(vectors[0], jnp.mean(alone[0], axis=0), atol=1e-5)


def test_similarity_is_that_of_the_vectors_that_embed_writes(export: Path, tmp_path: Path, capsys: Capture) -> None:
    """Spearman and Pearson correlation of cosines agree with scipy; no two cosines are equal."""
    pairs = list(itertools.combinations((*SENTENCES, "a stone", "the sea"), 2))
    gold = np.random.default_rng(0).integers(0, 6, len(pairs))
    lines = [
        "left\tright\tlike",
        *(f"{one}\t{other}\t{score}" for (one, other), score in zip(pairs, gold, strict=True)),
    ]
    (tmp_path / "p.tsv").write_text("\n".join(lines) + "\n")
    columns = ["--text-column", "left", "--pair-column", "right", "--label-column", "like", "--pooling", "cls"]
    assert run("eval-sts", "--model", export, "--pairs", f"tsv:{tmp_path}/p.tsv", *columns) == 0
    output = capsys.readouterr().out
    vectors = []
    for side in (0, 1):
        (tmp_path / "t.txt").write_text("\n".join(pair[side] for pair in pairs) + "\n")
        out = tmp_path / f"v{side}.npy"
        assert run("embed", "--model", export, "--in", tmp_path / "t.txt", "--out", out, "--pooling", "cls") == 0
        vectors.append(np.load(out).astype(np.float64))
    cosines = (vectors[0] * vectors[1]).sum(1) / np.prod([np.linalg.norm(side, axis=1) for side in vectors], axis=0)
    expected = scipy.stats.spearmanr(cosines, gold)[0], scipy.stats.pearsonr(cosines, gold)[0]
    assert f"spearman {expected[0]:.4f}  pearson {expected[1]:.4f}" in output
    assert output.startswith("10 pairs, cosines of the first token")


def test_embed_pools_as_the_folder_says(export: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "st"
    save_sentence_transformers(folder, load_pretrained(export), Pooling("cls", True, 6))
    (tmp_path / "t.txt").write_text("\n".join(SENTENCES))

    def vectors(*more: str) -> np.ndarray:
        assert run("embed", "--model", folder, "--in", tmp_path / "t.txt", "--out", tmp_path / "v.npy", *more) == 0
        return np.load(tmp_path / "v.npy")

    scaled, output = vectors(), capsys.readouterr().out
    assert "the first token, scaled to length one" in output and "2 of them were longer than 6 tokens" in output
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1.0, atol=1e-5)
    raw = vectors("--no-normalize")
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), scaled, atol=1e-5)
    assert np.abs(vectors("--pooling", "mean", "--max-length", "64") - scaled).max() > 1e-3


def test_minimal_pairs_by_group(finished: Finished, export: Path, tmp_path: Path, capsys: Capture) -> None:
    """Trained on "The cat sees the dog.", the model knows that no sentence begins with a verb."""
    pairs = [
        {"sentence_good": "The cat sees the dog.", "sentence_bad": "Sees the cat the dog.", "UID": "order", "n": 1},
        {
            "sentence_good": "The bird likes the house.",
            "sentence_bad": "The bird likes the house.",
            "UID": "same",
            "n": 2,
        },
        {
            "sentence_good": "The dog opens the letter.",
            "sentence_bad": "The opens dog letter the.",
            "UID": "order",
            "n": 3,
        },
    ]
    for number, part in enumerate((pairs[:2], pairs[2:])):
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, part)) + "\n\n")
    files, out = ["--pairs", tmp_path / "0.jsonl", tmp_path / "1.jsonl"], tmp_path / "scores.jsonl"
    assert run("eval-minimal-pairs", "--model", export, *files, "--out", out) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("3 pairs, pseudo-log-likelihood, each token masked in turn")
    table = {line[:20].strip(): line[20:].split() for line in output[1:] if not line.startswith("ties")}
    assert table["UID"] == ["pairs", "accuracy"] and table["order"][0] == "2" and table["same"] == ["1", "0.000"]
    assert table["all"][0] == "3" and output[-1] == "ties, which count as wrong: 1"
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["n"] for line in scored] == [1, 2, 3] and scored[1]["score_good"] == scored[1]["score_bad"] < 0
    right = [line["score_good"] > line["score_bad"] for line in scored]
    assert table["all"][1] == f"{np.mean(right):.3f}"
    assert run("eval-minimal-pairs", "--model", finished.workdir, *files, "--out", tmp_path / "run.jsonl") == 0
    again = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([line["score_bad"] for line in again], [line["score_bad"] for line in scored], rtol=1e-5)
    capsys.readouterr()
    assert (
        run("eval-minimal-pairs", "--model", export, *files, "--score", "within-word", "--group-by", "sentence_good")
        == 0
    )
    assert "with the rest of its word" in capsys.readouterr().out


def test_a_broken_folder_is_one_line(export: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(export, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    (tmp_path / "t.txt").write_text("a\n")
    assert run("embed", "--model", tmp_path / "broken", "--in", tmp_path / "t.txt", "--out", tmp_path / "v.npy") == 2
    assert "broken JSON" in capsys.readouterr().err and not (tmp_path / "v.npy").exists()
