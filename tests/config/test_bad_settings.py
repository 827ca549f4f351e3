"""Bad settings in a config file or on the command line: one line, status 2, at once, and no files left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bertjax.cli import main
from bertjax.commands import pretrain
from bertjax.config.data import TOKENIZER_FAMILIES
from bertjax.config.fields import Setting
from bertjax.config.overrides import declared
from bertjax.errors import UserError

FILE = """from math import inf, nan
from bertjax.config.defaults import base_config

def get_config():
    config = base_config()
    config.data.cache_dir = "cache"
    {line}
    return config
"""
NAN, INF = float("nan"), float("inf")
HUGE = 10**400  # larger than any float
NAMED = {
    "checkpoint.interval_minutes": [0.0, -1.0, NAN, INF, HUGE],
    "checkpoint.keep_every": [0, -1],
    "data.cache_dir": ["a" * 5000, "a\0b", "\ud800", "/".join(["a" * 250] * 20)],
    "data.tokenizer": ["a" * 5000],
    "data.tokenizer_family": ["x"],
    "data.workers": [2**63 - 1, 0],
    "eval.fill_mask": [("\ud800 [MASK]",)],
    "init_from": ["a" * 5000],
    "model.clamp_len": [-2],
    "model.family": ["x"],
    "model.global_rope_theta": [0.0],
    "model.hidden_size": [10**18, 10**5000],
    "model.initializer_range": [-1.0, 1e-320],
    "model.layer_norm_eps": [-1.0],
    "model.num_layers": [10**9],
    "objective.mlm.mlm_weight": [1e308, 2**127],
    "objective.rtd.temperature": [1e-320],  # 0 in float32
    "optimizer.learning_rate": [NAN, INF, 2**127],
    "seed": [-1, 2**32],  # jax draws the same from seeds that differ by 2**32
    "train.num_steps": [2**31, 2**63, 10**400],
}


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("the setting was accepted")

    monkeypatch.setattr(pretrain, "changed_keys", started)


def refused(arguments: list[str], key: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must be refused, and returns its only line of output."""
    before, began = sorted(folder.rglob("*")), time.monotonic()
    assert main(["pretrain", "--workdir", str(folder / "run"), *arguments]) == 2, arguments
    assert time.monotonic() - began < 20
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and len(output.err) < 2200 and output.err.isascii() and not output.out
    assert key in output.err, output.err
    assert sorted(folder.rglob("*")) == before
    return output.err


def in_file(key: str, value: Any) -> str:
    """Returns a config file that sets a key; Python neither prints nor reads integers of thousands of digits."""
    text = f"10**{len(f'{value:x}')}" if isinstance(value, int) and abs(value) > 10**4000 else repr(value)
    return FILE.format(line=f"config.{key} = {text}")


def on_command_line(key: str, value: Any) -> str:
    if isinstance(value, int) and abs(value) > 10**4000:
        return f"--config.{key}={'9' * 5000}"
    return f"--config.{key}={','.join(value) if isinstance(value, tuple) else value}"


@pytest.mark.parametrize("key", NAMED)
def test_named(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = tmp_path / "plain.py"
    plain.write_text(FILE.format(line="pass"))
    for value in NAMED[key]:
        broken = tmp_path / "broken.py"
        broken.write_text(in_file(key, value), encoding="utf-8")
        assert "broken.py:7: " in refused(["--config", str(broken)], key, tmp_path, capsys)
        typed = on_command_line(key, value)
        refused(["--config", str(plain), typed], "" if "\0" in typed or "\ud800" in typed else key, tmp_path, capsys)


def bad_value(each: Setting, draw: random.Random) -> Any:
    """Returns a random value that this key must refuse."""
    wrong: list[Any] = ["a\0b", "\ud800"]
    if each.choices:
        wrong += ["x", each.choices[0].upper() + " "] + ([] if each.many else [""])  # no text is an empty list
    if each.path:
        wrong += ["n" * draw.randint(256, 5000), "/".join(["n"] * 3000)]
    if each.kind is int:
        wrong = [1.5, "x", NAN, 2 ** draw.randint(33, 90), -(2 ** draw.randint(33, 90))]
    if each.kind is float:
        wrong = ["x", NAN, INF, -INF, 10.0 ** draw.randint(38, 308), 10.0 ** draw.randint(-300, -38)]
    if each.kind is bool:
        wrong = [2, -1, "maybe", 0.5]
    if each.kind in (int, float):
        lower = each.at_least if each.above is None else each.above
        upper = each.at_most if each.below is None else each.below
        wrong += [] if lower is None else [each.kind(lower - draw.randint(1, 9))]
        wrong += [] if upper is None else [each.kind(upper + draw.randint(1, 9))]
    value = draw.choice(wrong)
    return (value,) if each.many else value


def random_cases(count: int) -> list[tuple[str, Any]]:
    draw = random.Random(15)
    keys = sorted(declared())
    return [(key, bad_value(declared()[key], draw)) for key in (draw.choice(keys) for _ in range(count))]


@pytest.mark.long
def test_200_at_random(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain, broken = tmp_path / "plain.py", tmp_path / "broken.py"
    plain.write_text(FILE.format(line="pass"))
    for number, (key, value) in enumerate(random_cases(200)):
        if number % 2:
            broken.write_text(in_file(key, value), encoding="utf-8")
            refused(["--config", str(broken)], key, tmp_path, capsys)
        else:
            typed = f"--config.{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
            named = "" if "\0" in typed or "\ud800" in typed else key
            refused(["--config", str(plain), typed], named, tmp_path, capsys)


@pytest.mark.weekly
def test_some_at_random_in_processes(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    plain, broken = tmp_path / "plain.py", tmp_path / "broken.py"
    plain.write_text(FILE.format(line="pass"))
    for number, (key, value) in enumerate(random_cases(50)):
        broken.write_text(in_file(key, value), encoding="utf-8")
        typed = f"--config.{key}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        from_file = number % 2 or "\0" in typed or "\ud800" in typed
        arguments = [str(broken)] if from_file else [str(plain), typed]
        before, began = sorted(tmp_path.rglob("*")), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "bertjax.cli", "pretrain", "--workdir", "run", "--config", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and key in done.stderr, done.stderr
        assert time.monotonic() - began < 20 and sorted(tmp_path.rglob("*")) == before


def test_names_of_families() -> None:
    """The choices in the config, which imports neither package, are those of the tables."""
    from bertjax.data.special_tokens import FAMILIES as TOKENIZERS
    from bertjax.hf.keymaps import FAMILIES

    assert [family.name for family in FAMILIES.builtins()] == list(FAMILIES.builtin)
    assert list(TOKENIZERS) == TOKENIZER_FAMILIES


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("import sys; sys.exit()", "broken.py:7: the file ends the program"),
        ("raise GeneratorExit", "broken.py:7: GeneratorExit"),
        ('config.seed = 1; config.train.log_interval_steps = 100 // config.get_ref("seed")', "log_interval_steps"),
        ('config.objective.name = "ends:Objective"', "cannot be imported: SystemExit"),
    ],
)
def test_code_of_the_user(
    lines: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    broken = tmp_path / "broken.py"
    broken.write_text(FILE.format(line=lines))
    seed = ["--config.seed=0"] if "get_ref" in lines else []
    refused(["--config", str(broken), *seed], message, tmp_path, capsys)


def test_a_pipe_as_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    refused(["--config", str(tmp_path / "pipe.py")], "is a pipe", tmp_path, capsys)


def test_messages_are_one_short_printable_line() -> None:
    message = str(UserError("begin" + "\n\x1b[31m\ud800" + "x" * 10_000 + "end"))
    assert len(message) < 2100 and message.isprintable() and message.startswith("begin \\x1b[31m\\ud800x")
    assert message.endswith("end")
