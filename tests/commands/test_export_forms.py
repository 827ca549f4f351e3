"""`bertjax export` as a folder of sentence-transformers, and to the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from lab import Finished, Lab

import bertjax
from bertjax.commands import export as command
from bertjax.errors import UserError
from bertjax.hf import push
from bertjax.hf.pretrained import load_pretrained
from bertjax.hf.sentence_folders import read_pooling
from bertjax.hf.sentence_transformers import Pooling


def test_sentence_vectors(lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "vectors"
    arguments = ["--sentence-transformers", "--pooling", "cls", "--max-length", 16]
    assert lab.run("export", "--workdir", finished.workdir, "--out", out, *arguments) == 0
    assert "sentence_transformers.SentenceTransformer(" in capsys.readouterr().out
    assert read_pooling(out) == Pooling("cls", True, 16)
    ids = np.arange(5, 15)[None]
    vectors = [load_pretrained(folder)(ids).last_hidden_state for folder in (out, finished.workdir / "export")]
    np.testing.assert_array_equal(*vectors)


def test_shards_of_two_bytes_per_weight(lab: Lab, finished: Finished, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["--dtype", "bfloat16", "--max-shard-size", "20KB", "--format", "safetensors"]
    assert lab.run("export", "--workdir", finished.workdir, "--out", out, *flags) == 0
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    before, after = (load_pretrained(folder).params for folder in (finished.workdir / "export", out))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x.astype("bfloat16").astype("float32"), y), before, after)


@pytest.mark.parametrize("source", ["workdir", "export"])
def test_any_model_is_written_again(
    source: str, lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = finished.workdir if source == "workdir" else finished.workdir / "export"
    assert lab.run("export", "--model", model, "--out", tmp_path / "half", "--dtype", "bfloat16") == 0
    assert f"exported to {tmp_path / 'half'}, read back" in capsys.readouterr().out
    before, after = (load_pretrained(folder).params for folder in (finished.workdir / "export", tmp_path / "half"))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x.astype("bfloat16").astype("float32"), y), before, after)
    folder = bertjax.export(model=model, out=tmp_path / "vectors", sentence_transformers=True, max_length=9)
    library = pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(bertjax.embed(folder, ["the cat sees"]), library.encode(["the cat sees"]), atol=1e-5)


def test_one_source_of_an_export(
    lab: Lab, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export, out = finished.workdir / "export", ("--out", tmp_path / "out")
    for arguments, message in (
        (out, "give a run with --workdir, or any other model with --model"),
        ((*out, "--workdir", finished.workdir, "--model", export), "give a run with --workdir"),
        ((*out, "--model", export, "--step", "4"), "--step, --average-last and --network are those of a run"),
        ((*out, "--workdir", export), "is a model of transformers, not the work directory of a run"),
    ):
        assert lab.run("export", *arguments) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UserError, match=r"^out is missing: the folder to write$"):
        bertjax.export(finished.workdir)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-shard-size", "5XB"], "--max-shard-size must be a size such as 500MB or 5GB, not '5XB'"),
        (["--pooling", "cls"], "need --sentence-transformers"),
        (["--max-length", "9"], "need --sentence-transformers"),
        (["--public"], "--public needs --push-to-hub OWNER/NAME"),
        (["--sentence-transformers", "--max-length", "999"], "beyond the 64 tokens"),
        (["--push-to-hub", "nobody"], "OWNER/NAME"),
    ],
)
def test_bad_flags(
    arguments: list[str],
    message: str,
    lab: Lab,
    finished: Finished,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert lab.run("export", "--workdir", finished.workdir, "--out", tmp_path / "out", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class FakeHub:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def whoami(self) -> dict[str, Any]:
        return {"name": "ada"}

    def repo_exists(self, repo_id: str) -> bool:
        return repo_id == "ada/taken"

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        self.calls.append((repo_id, private))

    def upload_folder(self, *, folder_path: str, commit_message: str, **_: Any) -> None:
        self.calls.append((folder_path, commit_message))


@pytest.mark.parametrize("public", [False, True])
def test_push(
    public: bool,
    lab: Lab,
    finished: Finished,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub, out = FakeHub(), tmp_path / "out"
    monkeypatch.setattr(push, "HfApi", lambda: hub)
    flags = ["--push-to-hub", "ada/engine", *(["--public"] if public else [])]
    assert lab.run("export", "--workdir", finished.workdir, "--out", out, *flags) == 0
    assert hub.calls == [("ada/engine", not public), (str(out), "Step 8, exported by bertjax")]
    assert "uploaded to https://huggingface.co/ada/engine" in capsys.readouterr().out


def test_a_repository_that_is_taken_is_found_before_the_export(
    lab: Lab, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(push, "HfApi", FakeHub)
    monkeypatch.setattr(command, "load_run", lambda *_: pytest.fail("the checkpoint was read"))
    flags = ["--push-to-hub", "ada/taken"]
    assert lab.run("export", "--workdir", finished.workdir, "--out", tmp_path / "out", *flags) == 2
    assert "exists on the Hub" in capsys.readouterr().err
