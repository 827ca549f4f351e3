"""Runs of encoder-decoders from the command line: resumed, evaluated, exported, and started from others."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from lab import Finished, Lab

from bertjax.cli import main
from bertjax.experiment.load import load_run, load_source_model
from bertjax.io.tree_paths import flatten_tree

COMMON = (
    "--config.data.example_format=block",
    "--config.eval.fill_mask=",
    "--config.schedule.name=constant",
    "--config.schedule.warmup_steps=0",
    "--config.train.compute_dtype=float32",
)
T5 = (
    *COMMON,
    "--config.objective.name=span_corruption",
    "--config.objective.span_corruption.num_sentinels=8",
    "--config.model.preset=t5-small",
    "--config.model.head_size=8",
    "--config.model.num_layers=1",
    "--config.decoder.start_token=pad",
)


@pytest.mark.weekly
def test_span_corruption_is_resumed_evaluated_and_exported_as_t5(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    whole, halves = (lab.folder / name for name in ("t5-whole", "t5-halves"))
    assert lab.run("pretrain", "--workdir", whole, *T5, "--config.train.num_steps=4") == 0
    for steps in (2, 4):
        assert lab.run("pretrain", "--workdir", halves, *T5, f"--config.train.num_steps={steps}") == 0
    first, second = (flatten_tree(load_run(workdir).params) for workdir in (whole, halves))
    assert all(np.array_equal(first[path], second[path]) for path in first)
    capsys.readouterr()
    assert lab.run("evaluate", "--workdir", whole) == 0
    assert "span_corruption loss" in capsys.readouterr().out
    assert lab.run("inspect-data", *T5) == 0
    assert "\n  target: <extra_id_0> " in capsys.readouterr().out

    import transformers

    folder = whole / "export"
    model, info = transformers.T5ForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()) and model.config.num_decoder_layers == 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids("<extra_id_0>") == len(tokenizer) - 1 == model.config.vocab_size - 1
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["decoder_start_token_id"] == tokenizer.pad_token_id
    source, run = load_source_model(folder), load_source_model(whole)
    assert source.decoder is not None and run.decoder is not None
    for one, other in ((source, run), (source.decoder, run.decoder)):
        assert jax.tree.all(jax.tree.map(np.array_equal, one.params, other.params))
    more = ("--config.train.num_steps=1", "--config.train.batch_size=4", "--config.platform=cpu")
    text = (f"--config.data.sources=text:{lab.corpus}", f"--config.data.cache_dir={lab.folder}/cache")
    sentinels = "--config.objective.span_corruption.num_sentinels=8"
    arguments = ["pretrain", "--continue", str(folder), "--workdir", str(lab.folder / "t5-continued")]
    assert main([*arguments, *more, *text, sentinels, "--config.mesh.data=1"]) == 0
    assert "objective span_corruption: 1 steps" in (printed := capsys.readouterr().out) and "fresh" not in printed
    start = f"--config.init_from={folder}"
    assert lab.run("pretrain", "--workdir", lab.folder / "t5-next", *T5, start, "--config.train.num_steps=1") == 0
    assert "fresh" not in capsys.readouterr().out


@pytest.mark.weekly
def test_an_encoder_becomes_encoder_and_decoder(
    lab: Lab, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    start = (f"--config.init_from={finished.workdir}", f"--config.data.tokenizer={finished.workdir / 'tokenizer'}")
    settings = (*COMMON, *start, "--config.objective.name=infilling", "--config.train.num_steps=1")
    workdir = lab.folder / "bert2bert"
    assert lab.run("pretrain", "--workdir", workdir, *settings, "--config.decoder.sharing=none") == 0
    assert "fresh: decoder/encoder/layers/cross_attention; unused: " in capsys.readouterr().out
    values = json.loads((workdir / "export" / "config.json").read_text())
    assert values["architectures"] == ["EncoderDecoderModel"]
    assert lab.run("export", "--workdir", workdir, "--out", lab.folder / "encoder", "--network", "model") == 0
    assert load_source_model(lab.folder / "encoder").decoder is None
    vectors = ("--out", lab.folder / "vectors", "--sentence-transformers")
    assert lab.run("export", "--workdir", workdir, *vectors) == 2
    assert "export the encoder with --network=model" in capsys.readouterr().err
    assert lab.run("pretrain", "--workdir", lab.folder / "z", *settings, "--config.decoder.num_layers=1") == 0
    assert "fresh: decoder" in capsys.readouterr().out, "a decoder of other sizes is not the encoder"
