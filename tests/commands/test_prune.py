"""`bertjax prune`: a smaller model of the same class, its recovery, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from lab import Finished, Lab
from parity.compare import random_params
from safetensors.numpy import load_file

import bertjax
from bertjax.cli import main
from bertjax.config.model import EncoderConfig
from bertjax.config.presets import preset
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.hf.export_plan import plan_export
from bertjax.hf.keymaps import FAMILIES
from bertjax.hf.load import order_heads
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.save import save_pretrained
from bertjax.io.tree_paths import flatten_tree
from bertjax.training.transforms import LAYER_MATRIX


def prune(model: Path, lab: Lab, out: Path, *arguments: object) -> int:
    return main(["prune", "--model", str(model), "--text", f"text:{lab.corpus}", "--out", str(out),
                 f"--config.data.cache_dir={lab.folder / 'cache'}", "--config.data.seq_len=32",
                 *map(str, arguments)])  # fmt: skip


@pytest.mark.long
def test_a_run_becomes_a_smaller_folder_of_the_same_class(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = "--layers", 1, "--intermediate-size", 20, "--min-token-count", 3, "--sparsity", "2:4"
    assert prune(finished.workdir, lab, tmp_path / "small", *arguments) == 0
    printed = capsys.readouterr().out
    assert "num layers                    2 -> 1" in printed and "50.0% of the matrices of the layers" in printed
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "small")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    assert (model.config.num_hidden_layers, model.config.intermediate_size) == (1, 20)
    assert len(tokenizer) == model.config.vocab_size < finished_vocabulary(finished)
    kernel = model.bert.encoder.layer[0].intermediate.dense.weight.detach().numpy()
    assert ((kernel.reshape(20, -1, 4) != 0).sum(-1) == 2).all()
    loaded = bertjax.load_pretrained(tmp_path / "small")
    tokens = tokenizer("the cat sees [MASK] garden.", return_tensors="np")["input_ids"]
    theirs = model(input_ids=torch.tensor(tokens)).logits.detach().numpy()
    np.testing.assert_allclose(np.asarray(loaded(tokens).logits), theirs, rtol=0, atol=2e-5)


def finished_vocabulary(finished: Finished) -> int:
    return int(json.loads((finished.workdir / "export" / "config.json").read_text())["vocab_size"])


@pytest.mark.long
def test_a_recovery_resumes_keeps_zeros_and_other_heads(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second call finds the run finished and writes the same bytes; another target is refused."""
    arguments = "--layers", 1, "--min-token-count", 3, "--sparsity", 0.5, "--workdir", tmp_path / "run"
    short = "--config.train.num_steps=3", "--config.train.batch_size=8", "--config.optimizer.learning_rate=1e-3"
    assert prune(finished.workdir, lab, tmp_path / "one", *arguments, *short) == 0
    assert "after the recovery" in capsys.readouterr().out
    assert prune(finished.workdir, lab, tmp_path / "two", *arguments, *short) == 0
    weights = [load_file(folder / "model.safetensors") for folder in (tmp_path / "one", tmp_path / "run" / "pruned")]
    again = (tmp_path / "two" / "model.safetensors").read_bytes()
    assert again == (tmp_path / "one" / "model.safetensors").read_bytes()
    for name in weights[1]:
        if ".layer." in name and weights[1][name].ndim == 2:
            after, before = (each[name] for each in weights)
            np.testing.assert_array_equal(after[before == 0], 0.0)
            assert (before == 0).mean() == pytest.approx(0.5, abs=0.01)
            assert not np.array_equal(after, before)
    capsys.readouterr()
    other = "--layers", 2, *arguments[2:]
    assert prune(finished.workdir, lab, tmp_path / "three", *other, *short) == 2
    assert "was begun with layers=1, not 2" in capsys.readouterr().err
    assert not (tmp_path / "three").exists()


SIZES: dict[str, Any] = {"hidden_size": 16, "num_layers": 4, "num_heads": 2, "intermediate_size": 24}
MODELS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "classifier": ("roberta-base", ("sequence_classification",), {"labels": ("a", "b", "c"), "position_offset": 1}),
    "tags": ("electra-small", ("token_classification",), {"embedding_size": 8}),
    "local layers": ("modernbert-base", ("mlm",), {"global_attn_every_n_layers": 2}),
    "shared layers": ("albert-base-v2", ("mlm",), {"embedding_size": 8}),
    "disentangled": ("deberta-v3-xsmall", ("mlm",), {"head_size": 8}),
    "relative": ("xlnet-base", ("mlm",), {}),
    "causal": ("gpt2", ("mlm",), {}),
    "own format": ("bert-tiny", ("mlm",), {"norm_placement": "sandwich"}),
}
IN_LONG = ("classifier", "shared layers", "disentangled")
LLAMA = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


def make_config(name: str, tokenizer: Tokenizer) -> EncoderConfig:
    ids = {"vocab_size": tokenizer.size, "pad_token_id": tokenizer.pad_id, "max_position_embeddings": 64}
    if name != "grouped queries":
        preset_name, _, changes = MODELS[name]
        return EncoderConfig(**preset(preset_name) | SIZES | ids | changes)
    values = transformers.LlamaConfig(**LLAMA, **ids, intermediate_size=24).to_json_string(use_diff=False)
    return FAMILIES["llama"].parse_config(json.loads(values))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in IN_LONG else pytest.mark.weekly)
        for name in (*MODELS, "grouped queries")
    ],
)
def test_every_kind_of_model_is_pruned_and_recovered(name: str, lab: Lab, finished: Finished, tmp_path: Path) -> None:
    """Half of the layers and of the inner units; heads that the recovery does not train stay as they were."""
    tokenizer = load_tokenizer(finished.workdir / "tokenizer")
    config, heads = make_config(name, tokenizer), MODELS.get(name, ("", ("mlm",)))[1]
    if (plan := plan_export(config, heads)).family is not None:
        heads = order_heads(tuple({*heads, *(plan.family.heads_of(plan.architecture) or ())}))
    params = jax.device_get(random_params(config, heads))
    save_pretrained(tmp_path / "model", params, config, heads=heads, tokenizer=tokenizer)
    fewer = ("--heads", 2) if name == "grouped queries" else ()
    arguments = "--layers", 2, "--intermediate-size", 12, "--min-token-count", 3, "--sparsity", "1:2", *fewer
    run = ("--workdir", tmp_path / "run", "--config.train.num_steps=2", "--config.train.batch_size=8",
           "--config.report.enabled=false")  # fmt: skip
    assert prune(tmp_path / "model", lab, tmp_path / "small", *arguments, *run) == 0
    small, before = (bertjax.load_pretrained(tmp_path / each) for each in ("small", "run/pruned"))
    assert isinstance(small, PretrainedModel) and small.heads == heads == before.heads
    assert (small.config.num_layers, small.config.intermediate_size) == (2, 12)
    assert small.config.num_heads == 2 and small.config.vocab_size < tokenizer.size
    assert plan_export(small.config, heads).family == plan.family
    old, new = flatten_tree(before.params), flatten_tree(small.params)
    moved = {path for path in new if not np.array_equal(old[path], new[path])}
    learns_tokens = (
        "mlm" in heads and name != "relative" and any(path.startswith("mlm_head") for path in new)
    )  # where every token sees itself
    assert {path.split("/")[0] for path in moved} - {"decoder_positions"} == {"encoder", *["mlm_head"] * learns_tokens}
    for path, leaf in new.items():
        if LAYER_MATRIX.fullmatch(path):
            np.testing.assert_array_equal(np.asarray(leaf) == 0, np.asarray(old[path]) == 0)
        if path.startswith(("sequence_head", "token_head")):
            np.testing.assert_array_equal(leaf, flatten_tree(params)[path])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to prune: give --layers"),
        (("--layers", "2.5"), "neither a number of layers nor a list"),
        (("--layers", 0), "must be at least 1"),
        (("--layers", 3), "--layers=3 must be between 1 and the model's 2"),
        (("--layers", "1,0"), "each once and in order"),
        (("--intermediate-size", 49), "must be between 1 and the model's 48"),
        (("--heads", 2), "no class of bert in transformers has fewer heads"),
        (("--sparsity", "2"), "neither N:M with N below M"),
        (("--layers", 1, "--config.train.num_steps=3"), "needs --workdir"),
    ],
)
def test_what_cannot_be_pruned_is_refused(
    lab: Lab,
    finished: Finished,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[object, ...],
    message: str,
) -> None:
    assert prune(finished.workdir, lab, tmp_path / "small", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "small").exists()


def test_an_existing_folder_is_refused(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prune(tmp_path / "none", lab, tmp_path, "--layers", 1) == 2
    assert "exists; give a new folder" in capsys.readouterr().err
