"""The six examples: found by their entry points, trained, resumed, exported and loaded."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

import jax
import numpy as np
import pytest
from extras_lab import Extras

import bertjax
from bertjax.cli import main
from bertjax.config.extensions import ATTENTION, ENCODER_DECODERS, FAMILIES, OBJECTIVES, SOURCES, TASK_KINDS
from bertjax.config.model import EncoderConfig
from bertjax.config.overrides import apply_overrides, from_json, load_config, to_json
from bertjax.config.task import task_kind
from bertjax.errors import UserError
from bertjax.experiment.config import read_objective
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.models.model import abstract_params
from bertjax.training.flops import flops_per_token
from bertjax.training.sharding import make_mesh, state_shardings


@pytest.fixture(scope="session")
def runs(installed: Extras) -> dict[str, Path]:
    """Runs by name, made once by the tests that need them."""
    return {}


def pretrained(extras: Extras, runs: dict[str, Path]) -> Path:
    """A run with three extensions that was resumed once."""
    if "pretrained" not in runs:
        workdir = extras.folder / "pretrained"
        assert main(["pretrain", *extras.pretrain, "--workdir", str(workdir)]) == 0
        longer = ["--config.train.num_steps=4"]
        assert main(["pretrain", *extras.pretrain, *longer, "--workdir", str(workdir)]) == 0
        runs["pretrained"] = workdir
    return runs["pretrained"]


def test_names_are_listed_with_those_of_bertjax(extras: Extras, capsys: pytest.CaptureFixture[str]) -> None:
    for registry, name in zip(
        (OBJECTIVES, ATTENTION, FAMILIES, ENCODER_DECODERS, TASK_KINDS, SOURCES),
        ("rts", "alibi", "dpr", "umt5", "ordinal", "sqlite"),
        strict=True,
    ):
        assert [each for each in registry if registry.is_extension(each)] == [name]
        assert registry.package(name) == "bertjax-extras"
    assert main(["config", *extras.pretrain, "objective", "model.alibi"]) == 0
    shown = capsys.readouterr().out
    assert "objective.rts.rate = 0.3\n    Share of the tokens that are replaced. In (0, 1). (Default: 0.15.)" in shown
    assert "model.alibi.trainable = true" in shown and ", task, rts." in " ".join(shown.split())


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("objective.rts.rate=2", "objective.rts.rate must lie in (0, 1), not 2.0"),
        ("objective.rts.rat=0.2", "unknown key objective.rts.rat; did you mean objective.rts.rate"),
        ("objective.name=rtss", "did you mean 'rts'?"),
        ("model.position_embedding=learned", "model.attention_class=alibi replaces positions"),
        ("model.causal=true", "objective.name=rts judges a token by both sides of it"),
        ("data.sources=sqlit:a.db", "did you mean sqlite:?"),
    ],
)
def test_wrong_values_are_refused(
    extras: Extras, capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str, message: str
) -> None:
    arguments = [*extras.pretrain, f"--config.{key}"]
    assert main(["pretrain", *arguments, "--workdir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error


def test_config_files_and_the_api_set_the_keys_of_extensions(extras: Extras, tmp_path: Path) -> None:
    lines = 'config.objective.name = "bertjax_extras.rts:Rts"\n    config.objective.rts.rate = 0.4'
    path = tmp_path / "mine.py"
    path.write_text(
        "from bertjax.config.defaults import base_config\n\n\ndef get_config():\n    config = base_config()\n"
        f"    {lines}\n    return config\n"
    )
    config = load_config(str(path))
    assert config.objective.rts.rate == 0.4
    stored = from_json(to_json(config))
    assert stored.objective.rts.rate == 0.4 and to_json(stored) == to_json(config)
    assert "extension_packages" not in to_json(config)  # its path says where it is
    with pytest.raises(UserError, match=r"rate must lie in \(0, 1\)"):
        config.objective.rts.rate = 1.5
    from bertjax_extras.rts import Rts

    named = bertjax.load_config("bert:tiny", {"objective.name": Rts(rate=0.4), "data.example_format": "block"})
    assert (named.objective.name, named.objective.rts.rate) == ("bertjax_extras.rts:Rts", 0.4)
    config = bertjax.load_config(config, {"model.attention_class": "alibi", "model.position_embedding": "none"})
    config = bertjax.load_config(config, {"model.alibi.max_bias": 4})
    assert (config.objective.rts.rate, config.model.alibi.max_bias) == (0.4, 4.0)
    apply_overrides(config, ["--config.objective.name=mlm"])
    assert "rts" not in config.objective and "rts" not in to_json(config)


def test_a_kind_of_task_is_named_by_its_path(extras: Extras) -> None:
    keys = {"task.kind": "bertjax_extras.ordinal:Ordinal", "task.ordinal.sharpness": 3}
    config = bertjax.load_config("finetune/classification", keys)
    kind = task_kind(config)
    assert kind.sharpness == 3.0 and kind.metric == "kappa"
    assert read_objective(config).loss_weights == {"ordinal": 1.0}
    with pytest.raises(UserError, match=r"task.ordinal.sharpness must be above 0, not -1.0"):
        bertjax.load_config(config, {"task.ordinal.sharpness": -1})


@pytest.mark.long
def test_pretrained_resumed_exported_and_loaded(extras: Extras, runs: dict[str, Path]) -> None:
    workdir = pretrained(extras, runs)
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "eval/rts_loss" in record] == [2, 4]
    stored = json.loads((workdir / "config.json").read_text())
    assert stored["extension_packages"] == ["bertjax-extras"] and stored["objective"]["rts"]["rate"] == 0.3
    model = bertjax.load_pretrained(workdir / "export")
    assert model.config.attention_settings == ("max_bias=8.0", "trainable=true")
    factors = model.params["encoder"]["layers"]["attention"]["factors"]
    start = np.stack([2.0 ** -np.arange(2.0, 10.0, 2.0)] * model.config.num_layers)
    assert np.abs(factors - start).max() > 1e-7  # trained
    np.testing.assert_allclose(factors, start, atol=0.01)
    mixed = np.array([[2, *[7] * 10, 9, *[7] * 10, 3]])
    states = model(mixed).last_hidden_state[0]
    assert not np.allclose(states[1], states[10], atol=1e-4)  # the same token, nearer to another one


@pytest.mark.long
@pytest.mark.parametrize("command", ["pretrain", "export"])
def test_a_missing_package_is_named(
    extras: Extras,
    runs: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    workdir = pretrained(extras, runs)
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path != str(extras.site)])
    arguments = extras.pretrain if command == "pretrain" else ["--out", str(extras.folder / "never")]
    capsys.readouterr()
    assert main([command, *arguments, "--workdir", str(workdir)]) == 2
    error = capsys.readouterr().err
    assert (
        error.count("\n") == 1 and "the package bertjax-extras, whose extensions were used, is not installed" in error
    )
    with pytest.raises(UserError, match=r"config\.json: the package bertjax-extras"):
        bertjax.load_pretrained(workdir / "export")


def test_parameters_of_attention_are_sharded_and_counted(extras: Extras) -> None:
    values = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "position_embedding": "none"}
    alibi = EncoderConfig(attention_class="alibi", attention_settings=("trainable=true",), **values)
    from bertjax.config.distributed import MeshConfig

    shardings = state_shardings(abstract_params(alibi, ()), make_mesh(MeshConfig(1, 2, 4), jax.devices()))
    assert shardings["encoder"]["layers"]["attention"]["factors"].spec == jax.P(None, "tensor")
    assert flops_per_token(alibi, 0.0, 16.0) == flops_per_token(EncoderConfig(**values), 0.0, 16.0)


@pytest.mark.long
def test_a_task_is_finetuned_resumed_scored_and_used(
    extras: Extras, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words, draw = ("bad", "so", "good"), random.Random(1)
    stars = [draw.randint(1, 3) for _ in range(64)]
    texts = [" ".join([*draw.choices(["the", "a", "of"], k=4), words[each - 1]]) for each in stars]
    with sqlite3.connect(extras.folder / "labeled.db") as database:
        database.execute("CREATE TABLE labeled (text TEXT, label TEXT)")
        database.executemany("INSERT INTO labeled VALUES (?, ?)", zip(texts, map(str, stars), strict=True))
    database.close()
    source, workdir = f"sqlite:{extras.folder}/labeled.db", extras.folder / "finetuned"
    keys = [
        *("task.kind=ordinal", "task.ordinal.sharpness=1.5", f"init_from={pretrained(extras, runs)}"),
        *(f"task.train={source}", f"task.eval={source}", "task.text_column=text", "task.label_column=label"),
        *("task.max_length=24", "task.batch_size=16", "logging.tensorboard=false", "report.enabled=false"),
        *("platform=cpu", "mesh.data=1", "task.class_weights=balanced", "compile_cache=false"),
    ]
    arguments = ["--config", "finetune/classification", *(f"--config.{key}" for key in keys)]
    for epochs in (1, 2):
        limit = f"--config.task.epochs={epochs}"
        if epochs == 2:  # the same run under another config is refused; it is resumed where it stands
            assert main(["finetune", *arguments, limit, "--workdir", str(workdir)]) == 2
            assert "task.epochs" in capsys.readouterr().err
            limit = "--config.task.epochs=1"
        assert main(["finetune", *arguments, limit, "--workdir", str(workdir)]) == 0
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert {"eval/ordinal_loss", "eval/kappa", "eval/distance"} <= records[-1].keys()
    assert bertjax.load_pretrained(workdir / "export").config.labels == ("1", "2", "3")
    out = extras.folder / "predictions.jsonl"
    assert main(["predict", "--model", str(workdir), "--in", source, "--out", str(out), "--score"]) == 0
    predicted = [json.loads(line) for line in out.read_text().splitlines()]
    distance = sum(abs(int(record["label"]) - gold) for record, gold in zip(predicted, stars, strict=True)) / 64
    assert f"distance {distance:.4f}" in capsys.readouterr().out and len(predicted) == 64


def test_a_family_is_loaded_and_saved_as_transformers_has_it(extras: Extras, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    config = transformers.DPRConfig(vocab_size=60, max_position_embeddings=20, **sizes)
    theirs = transformers.DPRContextEncoder(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = bertjax.load_pretrained(tmp_path / "theirs")
    assert ours.config.family == "dpr"
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.DPRQuestionEncoder.from_pretrained(tmp_path / "ours").eval()
    ids = np.random.default_rng(0).integers(3, 60, (2, 9))
    with torch.no_grad():
        expected, returned = (model(torch.tensor(ids)).pooler_output.numpy() for model in (theirs, again))
    np.testing.assert_allclose(np.asarray(ours(ids).last_hidden_state)[:, 0], expected, atol=2e-5)
    np.testing.assert_array_equal(returned, expected)


def test_an_encoder_decoder_of_another_package_is_loaded_and_saved(extras: Extras, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    sizes = dict(vocab_size=50, d_model=24, d_kv=8, d_ff=20, num_layers=2, num_decoder_layers=3, num_heads=2)
    theirs = transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**sizes)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = bertjax.load_pretrained(tmp_path / "theirs")
    assert isinstance(ours, PretrainedEncoderDecoder) and ours.config.family == "umt5"
    ours.save_pretrained(tmp_path / "ours")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval()
    ids = np.random.default_rng(0).integers(3, 50, (2, 9))
    with torch.no_grad():
        logits = (each(torch.tensor(ids), decoder_input_ids=torch.tensor(ids)).logits for each in (theirs, again))
        expected, returned = (each.numpy() for each in logits)
    np.testing.assert_allclose(ours(ids, None, ids).logits, expected, atol=2e-5)
    np.testing.assert_array_equal(returned, expected)
