"""Which keys may change when a run resumes, and which run owns the checkpoints (P29, P15)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import Finished, Lab
from ml_collections import ConfigDict

from bertjax.config.defaults import base_config
from bertjax.config.model import NETWORK_GROUPS
from bertjax.config.overrides import apply_overrides, declared, flatten, load_config
from bertjax.errors import UserError
from bertjax.experiment.workdir import changed_keys, require_same_run, write_config
from bertjax.extensions import Attention

# How a run is computed, observed, stored and reported; it stays the same run. Any other key makes another run.
# There is no third class of changes that need a flag.
MAY_CHANGE = {
    "": "platform deterministic compile_cache dry_run init_from resume_from init_embeddings init_positions init_growth",
    "objective.distillation": "teacher",
    "task": "test teacher",
    "task.classification": "temperature",
    "task.multilabel": "temperature thresholds",
    "task.multiple_choice": "temperature",
    "train": "num_steps log_interval_steps microbatches steps_per_dispatch on_nonfinite max_nonfinite spike_factor"
    " skip_batches",
    "schedule": "name warmup_steps end_lr_ratio power decay_steps period_steps factor",
    "eval": "interval_steps num_batches batch_size patience use_ema fill_mask",
    "checkpoint": "interval_steps interval_minutes keep keep_every best_metric",
    "mesh": "data fsdp tensor",
    "distributed": "cluster coordinator_address num_processes process_id local_devices "
    "start_timeout peer_timeout wait_timeout end_timeout",
    "data": "cache_dir workers dask_scheduler",
    "export": "at_end average_last",
    "logging": "tensorboard wandb_project",
    "profile": "steps",
    "report": "enabled tokens sentence",
}
KEYS = flatten(base_config())
TEXT = {"train.phases": "9:data.seq_len=64", "optimizer.lr_mults": "a=1", "task.multilabel.thresholds": "0.25"}
TEXT |= {f"{group}.attention_class": "test_resume_changes:OtherAttention" for group in NETWORK_GROUPS}


class OtherAttention(Attention, group="model.other"):
    """An attention class of another package."""

    positions = ("none",)

    def scores(self, q: Any, k: Any, context: Any, key: Any = None) -> Any:
        return q


def another(key: str) -> str:
    """Returns a value that is not the default, of the declared type, as one writes it."""
    default, each = KEYS[key], declared()[key]
    numbers = [str(default + 1), str(default / 2)] if type(default) in (int, float) else []
    for text in (TEXT.get(key, "57"), *numbers, "true", "false", "0.5", "3", *each.choices, "other"):
        try:
            if each.parse(key, text) not in (default, tuple(default) if isinstance(default, list) else default):
                return text
        except UserError:
            continue
    raise AssertionError(key)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the work directory of a run that has saved a checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    write_config(folder, base_config())
    (folder / "checkpoints" / "3").mkdir(parents=True)
    return folder


def changed(key: str) -> ConfigDict:
    """Changes one key and none that derives from it."""
    cfg = apply_overrides(base_config(), [f"--config.{key}={another(key)}"])
    for other, value in flatten(cfg).items():
        if value != KEYS[other] and other != key:
            cfg.update_from_flattened_dict({other: KEYS[other]})
    return cfg


def may_change() -> set[str]:
    return {f"{group}.{leaf}".lstrip(".") for group, leaves in MAY_CHANGE.items() for leaf in leaves.split()}


def test_every_key_that_may_change_is_a_key() -> None:
    assert may_change() <= set(KEYS)


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])
def test_every_change_of_one_key_is_reported_or_refused_by_name(workdir: Path, every: int) -> None:
    """P29; and P15 for a checkpoint that was copied into the folder."""
    for key in [*KEYS][::every]:
        check_change(key, workdir)


def check_change(key: str, workdir: Path) -> None:
    cfg = changed(key)
    now, meta = flatten(cfg), {"config": KEYS}
    assert [each for each in KEYS if now[each] != KEYS[each]] == [key]
    if key in may_change():
        assert changed_keys(workdir, cfg) == [(key, KEYS[key], now[key])]
        require_same_run(workdir, 3, meta, cfg)
        return
    with pytest.raises(UserError) as caught:
        changed_keys(workdir, cfg)
    assert f"({key}: {KEYS[key]} there, {now[key]} here)" in str(caught.value)
    if key in ("data.sources", "data.eval_sources", "data.tokenizer"):  # the digests of the files identify them
        require_same_run(workdir, 3, meta, cfg)
        return
    with pytest.raises(UserError, match=r"the checkpoint of step 3 .* belongs to another run"):
        require_same_run(workdir, 3, meta, cfg)


def test_without_a_change_nothing_is_reported(workdir: Path) -> None:
    assert changed_keys(workdir, base_config()) == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("seed", "5", "seed: 0 there, 5 here"),
        ("optimizer.weight_decay", "0.5", "optimizer.weight_decay: 0.01 there, 0.5 here"),
        ("train.dropout_prng", "rbg", "train.dropout_prng: threefry there, rbg here"),
    ],
)
def test_changes_that_no_array_shows_are_refused_from_the_command_line(
    lab: Lab, finished: Finished, capsys: pytest.CaptureFixture[str], key: str, value: str, words: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.workdir.rglob("*") if path.is_file()}
    assert lab.run("pretrain", "--workdir", finished.workdir, f"--config.{key}={value}") == 2
    output = capsys.readouterr().err
    assert words in output and output.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in finished.workdir.rglob("*") if path.is_file()} == before


def test_a_newer_key_of_a_network_without_a_preset_means_its_default(tmp_path: Path) -> None:
    """Runs that start from a model store all of its values; they resume after an upgrade that adds keys."""
    cfg = base_config()
    cfg.model.preset, cfg.model.rotary_value = "none", False
    write_config(tmp_path, cfg)
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    edited(tmp_path, lambda stored: stored["model"].pop("rotary_value"))
    meta = {"config": {key: value for key, value in flatten(cfg).items() if key != "model.rotary_value"}}
    assert changed_keys(tmp_path, cfg) == []
    require_same_run(tmp_path, 3, meta, cfg)
    cfg.model.rotary_value = True
    with pytest.raises(UserError, match=r"model\.rotary_value: preset there, True here"):
        changed_keys(tmp_path, cfg)
    with pytest.raises(UserError, match=r"model\.rotary_value: preset there, True here"):
        require_same_run(tmp_path, 3, meta, cfg)


# -- owners of checkpoints ---------------------------------------------------------------------------------------------


@pytest.fixture
def begun(lab: Lab, finished: Finished, tmp_path: Path) -> Path:
    """Returns a work directory of another seed, which has no checkpoint yet."""
    cfg = apply_overrides(load_config(str(lab.config)), ["--config.seed=1"])
    write_config(tmp_path / "begun", cfg)
    shutil.copytree(finished.workdir / "tokenizer", tmp_path / "begun" / "tokenizer")
    return tmp_path / "begun"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_checkpoints_of_another_run_are_refused_and_left_alone(
    lab: Lab, finished: Finished, begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P15: shapes and text are the same, and config.json is right."""
    shutil.copytree(finished.workdir / "checkpoints", begun / "checkpoints")
    before = files_of(begun)
    assert lab.run("pretrain", "--workdir", begun, "--config.seed=1") == 2
    output = capsys.readouterr().err
    assert "the checkpoint of step 8" in output and "belongs to another run (seed: 0 there, 1 here)" in output
    assert files_of(begun) == before
    for command in (["evaluate"], ["export", "--out", begun / "out"]):
        assert lab.run(command[0], "--workdir", begun, *command[1:]) == 2
        assert "belongs to another run (seed: 0 there, 1 here)" in capsys.readouterr().err
    assert files_of(begun) == before


def test_checkpoints_that_nobody_owns_are_refused(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P15: a folder with checkpoints and no config.json."""
    shutil.copytree(finished.workdir / "checkpoints", tmp_path / "run" / "checkpoints")
    before = files_of(tmp_path / "run")
    assert lab.run("pretrain", "--workdir", tmp_path / "run") == 2
    assert "holds files but no run (no config.json)" in capsys.readouterr().err
    assert files_of(tmp_path / "run") == before


# -- other versions ----------------------------------------------------------------------------------------------------


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Writes config.json as another version would have written it."""
    stored = json.loads((folder / "config.json").read_text())
    change(stored)
    (folder / "config.json").write_text(json.dumps(stored))


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> Path:
    shutil.copytree(finished.workdir, tmp_path / "copied")
    return tmp_path / "copied"


@pytest.mark.parametrize("command", ["pretrain", "evaluate", "export"])
def test_a_key_of_another_version_is_named(
    lab: Lab, copied: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newer version's key may mean another model, so no value is assumed."""
    edited(copied, lambda stored: stored["model"].update(future_norm="deep"))
    out = ["--out", copied / "out"] if command == "export" else []
    assert lab.run(command, "--workdir", copied, *out) == 2
    output = capsys.readouterr().err
    assert f"{copied / 'config.json'}: unknown key model.future_norm" in output and output.count("\n") == 1
    assert "(was it written by another version of bertjax?)" in output


def test_a_key_that_is_younger_than_the_run_has_its_default(
    lab: Lab, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older version did not write the key; such a run used the default, and resumes with no other value."""
    edited(copied, lambda stored: (stored["train"].pop("spike_factor"), stored["data"].pop("packing")))
    assert lab.run("pretrain", "--workdir", copied, "--config.data.packing=best_fit") == 2
    assert "data.packing: none there, best_fit here" in capsys.readouterr().err
    assert lab.run("pretrain", "--workdir", copied) == 0
    assert "nothing is left to train" in capsys.readouterr().out
    meta = {"config": {key: value for key, value in KEYS.items() if key != "data.packing"}}
    require_same_run(copied, 8, meta, base_config())
    with pytest.raises(UserError, match=r"data\.packing: none there, best_fit here"):
        require_same_run(copied, 8, meta, apply_overrides(base_config(), ["--config.data.packing=best_fit"]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda stored: stored["train"].update(num_steps="many"), "train.num_steps expects a whole number"),
        (lambda stored: stored.update(train=3), "train is a group of keys"),
        (lambda stored: stored["model"].update(preset=7), "model.preset expects"),
    ],
)
def test_a_key_whose_type_changed_is_named(
    lab: Lab, copied: Path, change: Callable, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(copied, change)
    assert lab.run("pretrain", "--workdir", copied) == 2
    assert words in capsys.readouterr().err
