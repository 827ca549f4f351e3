"""Every encoder-decoder: continued for a step as a task, exported; `transformers` generates the texts of `predict`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from cells import TEXTS, common, tokenizer_folder
from parity.cases import Case
from parity.compare import random_transformers_model
from parity.families import CASES

import bertjax
from bertjax.config.extensions import ENCODER_DECODERS, TASK_KINDS
from bertjax.data.tokenizer_io import load_tokenizer, save_huggingface_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

KINDS = [kind for kind in TASK_KINDS.builtin if TASK_KINDS.load(kind).has_targets]


def write_model(family: str, folder: Path) -> None:
    """Writes a random model of `transformers` with a tokenizer, from the first parity case of its family."""
    case = next(case for case in CASES if case.family == family)
    tokenizer = load_tokenizer(tokenizer_folder("bert"))
    ids = {"pad_token_id": tokenizer.pad_id, "eos_token_id": tokenizer.sep_id, "bos_token_id": tokenizer.cls_id}
    ids |= {"decoder_start_token_id": tokenizer.cls_id, "forced_eos_token_id": None}
    sizes = {"vocab_size": tokenizer.size, "max_position_embeddings": 64}
    networks = {name: case.config[name] | sizes for name in ("encoder", "decoder") if name in case.config}
    config: dict[str, Any] = {**case.config, **ids, **(networks or sizes)}
    made: Case = dataclasses.replace(case, config=config)
    model = random_transformers_model(made, case.classes[0])
    model.generation_config = transformers.GenerationConfig(**ids)
    model.save_pretrained(folder)
    save_huggingface_tokenizer(tokenizer, folder, max_length=64)


def check(family: str, kind: str, folder: Path) -> None:
    write_model(family, folder / "model")
    pairs = [f"{TEXTS[index]}\t{TEXTS[index + 9]}" for index in range(8)]
    (folder / "train.tsv").write_text("\n".join(["source\ttarget", *pairs]) + "\n")
    cfg = common("bert", sizes=False)
    cfg.objective.name, cfg.task.kind, cfg.init_from = "task", kind, str(folder / "model")
    cfg.task.train, cfg.task.batch_size, cfg.task.epochs = (f"tsv:{folder}/train.tsv",), 8, 1.0
    cfg.task.max_length, cfg.task.packing = 32, False
    cfg.task.seq2seq.update({"max_target_length": 16, "text_metrics": (), "min_new_tokens": 4})
    run = bertjax.finetune(cfg, folder / "run")
    texts = [record["text"] for record in bertjax.predict(run.export, TEXTS[:3])]
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.export)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(run.export, trust_remote_code=True).eval()
    with torch.no_grad():  # the cache of transformers has as many layers as the encoder, those of T5 here are more
        expected = [model.generate(**tokenizer(text, return_tensors="pt"), use_cache=False)[0] for text in TEXTS[:3]]
    assert texts == [tokenizer.decode(ids, skip_special_tokens=True) for ids in expected]
    assert all(len(ids) > 4 for ids in expected)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind(kind: str, tmp_path: Path) -> None:
    check("t5", kind, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ENCODER_DECODERS.builtin)
def test_every_encoder_decoder(family: str, kind: str, tmp_path: Path) -> None:
    check(family, kind, tmp_path)
