"""scripts/speedrun.py: masked words and their loss per byte do not depend on the tokenizer."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from lab import load_script
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["[PAD]", "[UNK]", "[MASK]"]
SENTENCE = " Größe and <unk> words , as in the text of every day and night ; more of them follow . "
LINES = [" = A heading = ", " ", SENTENCE] * 9


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(Path(__file__).parents[2] / "scripts" / "speedrun.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for name in ("train.txt", "valid.txt"):
        (folder / name).write_text("\n".join(LINES), encoding="utf-8")
    return folder


def trained(kind: str) -> Any:
    if kind == "words":
        tokenizer, trainer = Tokenizer(models.WordPiece(unk_token="[UNK]")), trainers.WordPieceTrainer
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        tokenizer, trainer = Tokenizer(models.BPE()), trainers.BpeTrainer
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else []
    options = trainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LINES, options)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
    )


@pytest.mark.parametrize(("kind", "expected"), [("words", [0, -1, 0, -1]), ("bytes", [0, 1, 2, 3, -1, -1, 0, 1, -1])])
def test_tokens_have_positions_in_masked_words(script: ModuleType, kind: str, expected: list[int]) -> None:
    """Those of the bytes are ĠGr Ã¶Ã Ł e, Ġand Ġ, nigh t, Ġ;."""
    tokenizer = trained(kind)
    words, masked = ["Größe", "and", "night", ";"], [True, False, True, False]
    ids, positions, size = script.encode(words, masked, tokenizer)
    assert size == len("Größe".encode()) + len("night")
    assert positions == expected
    hidden = tokenizer.decode([token for token, at in zip(ids, positions, strict=True) if at >= 0])
    assert hidden.replace(" ", "") == "Größenight"


def test_a_token_is_predicted_from_those_before_it_in_its_word(
    script: ModuleType, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model that is certain of the right token of each position costs nothing; what it is shown is recorded."""
    tokenizer = trained("bytes")
    rows = [script.encode(*chunk, tokenizer) for chunk in script.chunks(data / "valid.txt")]
    shown = []

    class Certain:
        def eval(self) -> Certain:
            return self

        def __call__(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            shown.extend(row[mask > 0].tolist() for row, mask in zip(ids, attention_mask, strict=True))
            right = {len(tokens): tokens for tokens, _, _ in rows}
            best = torch.tensor([right[int(n)] + [0] * (ids.shape[1] - int(n)) for n in attention_mask.sum(1)])
            return argparse.Namespace(logits=100.0 * torch.nn.functional.one_hot(best, len(tokenizer)))

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda _: tokenizer)
    monkeypatch.setattr(transformers.AutoModelForMaskedLM, "from_pretrained", lambda _: Certain())
    assert len({len(ids) for ids, _, _ in rows}) == 1  # one sentence, masked in nine ways
    assert script.nats_per_byte(data, data / "valid.txt") == pytest.approx(0.0, abs=1e-6)
    expected = [
        [tokenizer.mask_token_id if at >= position else token for token, at in zip(ids, positions, strict=True)]
        for ids, positions, _ in rows
        for position in range(max(positions) + 1)
    ]
    assert sorted(shown) == sorted(expected) and len(shown) > len(rows)


def test_guessing_words_by_frequency(script: ModuleType, data: Path) -> None:
    words = " ".join(LINES).split()
    hidden = [
        word
        for chunk, masked in script.chunks(data / "valid.txt")
        for word, is_masked in zip(chunk, masked, strict=True)
        if is_masked
    ]
    nats = sum(math.log(len(words) / words.count(word)) for word in hidden)
    assert script.guessing(data) == pytest.approx(nats / sum(len(word.encode()) for word in hidden))


def test_a_uniform_model_costs_the_same_nats_for_every_token(script: ModuleType, data: Path, tmp_path: Path) -> None:
    tokenizer = trained("bytes")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(tokenizer), **sizes)
    model = transformers.BertForMaskedLM(config)
    torch.nn.init.zeros_(model.cls.predictions.decoder.weight)
    torch.nn.init.zeros_(model.bert.embeddings.word_embeddings.weight)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rows = [script.encode(*chunk, tokenizer) for chunk in script.chunks(data / "valid.txt")]
    tokens = sum(at >= 0 for _, positions, _ in rows for at in positions)
    expected = tokens * math.log(len(tokenizer)) / sum(size for _, _, size in rows)
    assert tokens > 20
    assert script.nats_per_byte(tmp_path, data / "valid.txt") == pytest.approx(expected, rel=1e-5)


def test_masks_leave_out_headings_and_unknown_words(script: ModuleType, data: Path) -> None:
    parts = [*script.chunks(data / "valid.txt")]
    hidden = [word for words, masked in parts for word, is_masked in zip(words, masked, strict=True) if is_masked]
    assert hidden and not {"=", "heading", "<unk>"} & {*hidden}
    assert parts == [*script.chunks(data / "valid.txt")]


def test_other_text_is_refused(script: ModuleType, data: Path) -> None:
    with pytest.raises(SystemExit, match=r"train\.txt has other bytes than pytorch/examples"):
        script.check_text(data)
    with pytest.raises(SystemExit, match="no such file; it is in pytorch/examples"):
        script.check_text(data / "nowhere")


def test_a_run_is_timed_without_caches_and_scored(
    script: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "score", lambda model, options: {"nats_per_byte": 1.0, "folder": str(model)})
    program = "import os, sys; print(os.environ['HF_HOME']); os.mkdir(sys.argv[1]); print(sys.argv[2])"
    command = shlex.join([sys.executable, "-c", program, "{out}", "{text}"])
    values = {"out": tmp_path, "name": "first", "data": data, "model": None, "sst2": None, "command": command}
    record = script.run(argparse.Namespace(**values))
    assert (tmp_path / "first.log").read_text().split() == [str(tmp_path / "first-cache"), str(data / "train.txt")]
    assert record["folder"].endswith("first/export") and record["cores"] >= 1 and 0 <= record["seconds"] < 60
    with pytest.raises(SystemExit, match="is there already"):
        script.run(argparse.Namespace(**values))
    with pytest.raises(SystemExit, match="ended with status 3"):
        script.run(argparse.Namespace(**values | {"name": "second", "command": f"{sys.executable} -c exit(3)"}))
