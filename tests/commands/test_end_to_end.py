"""scripts/end_to_end.py: our side in full, the arguments of the other side's job, and who skips the second turn."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from types import ModuleType

import pytest
from lab import Lab, load_script

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPTS / "end_to_end.py")


def options_of(lab: Lab, **changes: object) -> argparse.Namespace:
    values = {"text": lab.corpus, "bytes": 900, "size": "tiny", "rows": 4, "length": 32, "steps": 2, "repeats": 3}
    values |= {"vocab_size": 100, "platform": "cpu", "peer_python": "python", "peer_compile": False}
    return argparse.Namespace(**(values | changes))


def test_the_text_is_cut_at_the_end_of_a_line(
    lab: Lab, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(script, "call", lambda command, environment=None: called.append(command))
    script.prepare(script.Job(tmp_path, options_of(lab), []))
    text = (tmp_path / "text.txt").read_bytes()
    assert lab.corpus.read_bytes().startswith(text) and text.endswith(b"\n") and 800 < len(text) <= 900
    assert called[0][2:4] == ["bertjax", "tokenizer"]
    with pytest.raises(script.UserError, match=r"--text nowhere\.txt: no such file"):
        script.prepare(script.Job(tmp_path, options_of(lab, text=Path("nowhere.txt")), []))


@pytest.mark.weekly  # a short version: the jobs of both sides, below
def test_our_side_counts_the_tokens_of_a_real_run(lab: Lab, script: ModuleType, tmp_path: Path) -> None:
    job = script.Job(
        tmp_path, options_of(lab, bytes=10**6), ["--config.train.compute_dtype=float32", "--config.mesh.data=1"]
    )
    script.prepare(job)
    result = script.ours(job, "cold-0", tmp_path / "compiled")
    assert 0 < result.real_tokens <= 2 * 4 * 32 and 1 < result.seconds < 300
    assert any((tmp_path / "compiled").iterdir())


def test_the_peer_gets_the_same_sizes_text_and_tokenizer(
    lab: Lab, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 1}}}))

    def call(command: list[str], environment: dict[str, str] | None = None) -> None:
        assert command[0] == "python" and command[1] == str(SCRIPTS / "trainer_peer.py")
        options = json.loads(Path(command[2]).read_text())
        assert options["model"] | {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 2} == options["model"]
        assert (options["form"], options["dtype"], options["rows"], options["seq_len"], options["steps"]) == (
            "lines",
            "bfloat16",
            4,
            32,
            2,
        )
        Path(options["out"]).write_text(json.dumps({"ended": time.time() + 5, "real_tokens": 77}))

    monkeypatch.setattr(script, "call", call)
    result = script.theirs(script.Job(tmp_path, options_of(lab), []), "lines-0", "lines", "bfloat16")
    assert result.real_tokens == 77 and 5 <= result.seconds < 15


def test_all_take_turns_and_the_slower_type_of_each_form_only_one(
    lab: Lab, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    seconds = {"float32": 4.0, "bfloat16": 2.0}

    def ours(job: object, name: str, compiled: Path) -> object:
        order.append(f"{name} {compiled.name}")
        return script.Run(1.0 if name.startswith("cold") else 0.5, 100)

    def theirs(job: object, name: str, form: str, dtype: str) -> object:
        order.append(name)
        return script.Run(seconds[dtype] if form == "group" else 6.0 - seconds[dtype], 100)

    monkeypatch.setattr(script, "ours", ours)
    monkeypatch.setattr(script, "theirs", theirs)
    script.turns(script.Job(tmp_path, options_of(lab, repeats=2), []))
    first = ["group-float32-0", "group-bfloat16-0", "lines-float32-0", "lines-bfloat16-0"]
    assert order[:6] == ["cold-0 compiled-0", *first, "warm-0 compiled-0"]
    assert order[6:] == ["cold-1 compiled-1", "group-bfloat16-1", "lines-float32-1", "warm-1 compiled-1"]
    output = capsys.readouterr().out
    assert "| bertjax, nothing compiled before | 2 | 1.0 (1.0 to 1.0) | 100 | 100 | 2.00 |" in output
    assert "| bertjax, compiled before | 2 | 0.5 (0.5 to 0.5) | 100 | 200 | 4.00 |" in output
    assert "| Trainer, joined and cut, float32 | 1 | 4.0 (4.0 to 4.0) | 100 | 25 | 0.50 |" in output
