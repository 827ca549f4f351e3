"""Models by name, against a local server with the Hub's API: downloads, commits, cache, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import numpy as np
import pytest
from hub_server import Hub, folder_files, start
from lab import Finished, Lab
from safetensors.numpy import load, save

from bertjax.cli import main
from bertjax.config.overrides import apply_overrides, load_config
from bertjax.errors import UserError
from bertjax.experiment.hub_names import pin_commits
from bertjax.experiment.processes import prepare_on_first_process
from bertjax.experiment.workdir import read_config
from bertjax.hf.pretrained import load_pretrained
from bertjax.io.hub import pin
from bertjax.runtime.process_group import ProcessGroup

TOKEN = "hf_secretsecretsecret"
UNUSED = {"pytorch_model.bin": b"pickle", "onnx/model.onnx": b"graph", "tf_model.h5": b"", "README.md": b"# A card"}
NAME = "hub:ada/tiny"


@pytest.fixture
def hub(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server has the finished run's export as ada/tiny; the cache is empty."""
    hub = Hub()
    server = start(hub)
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.publish("ada/tiny", folder_files(finished.workdir / "export") | UNUSED)
    yield hub
    server.shutdown()
    server.server_close()


def changed(files: dict[str, bytes]) -> dict[str, bytes]:
    """Returns the next commit of a model, in which every weight is larger."""
    larger = {name: tensor + 1 for name, tensor in load(files["model.safetensors"]).items()}
    return files | {"model.safetensors": save(larger)}


def in_shards(files: dict[str, bytes]) -> dict[str, bytes]:
    tensors = sorted(load(files["model.safetensors"]).items())
    shards = {f"model-0000{n + 1}-of-00002.safetensors": dict(tensors[n::2]) for n in range(2)}
    index = {"weight_map": {tensor: name for name, part in shards.items() for tensor in part}}
    remaining = {name: content for name, content in files.items() if name != "model.safetensors"}
    small = {"model.safetensors.index.json": json.dumps(index).encode()}
    return remaining | small | {name: save(part) for name, part in shards.items()}


def test_only_what_is_read_is_downloaded_once(hub: Hub, finished: Finished) -> None:
    local = load_pretrained(finished.workdir / "export")
    model = load_pretrained(NAME)
    jax.tree.map(np.testing.assert_array_equal, model.params, local.params)
    assert model.tokenizer_files == local.tokenizer_files
    names = hub.downloaded()
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= names and not names & UNUSED.keys()
    load_pretrained(pin(NAME))
    assert not hub.downloaded()


def test_shards_are_those_of_the_index(hub: Hub, finished: Finished) -> None:
    files = in_shards(folder_files(finished.workdir / "export"))
    hub.publish("shards", files | {"model-00009-of-00009.safetensors": b"of another copy"})
    model = load_pretrained("hub:shards")
    jax.tree.map(np.testing.assert_array_equal, model.params, load_pretrained(NAME).params)
    assert "model-00009-of-00009.safetensors" not in hub.downloaded()


@pytest.mark.long
def test_a_run_keeps_its_commit_when_the_branch_moves(hub: Hub, finished: Finished, lab: Lab, tmp_path: Path) -> None:
    first, workdir = hub.branches["ada/tiny", "main"], tmp_path / "run"
    named = f"--config.init_from={NAME}", f"--config.data.tokenizer={NAME}@main"
    assert lab.run("pretrain", "--workdir", workdir, *named) == 0
    stored = read_config(workdir)
    assert stored.init_from == stored.data.tokenizer == f"{NAME}@{first}"
    card = (workdir / "export" / "README.md").read_text()
    assert 'base_model: "ada/tiny"' in card and f"| Revision of the base model | {first} |" in card
    hub.publish("ada/tiny", changed(folder_files(finished.workdir / "export")))
    assert lab.run("pretrain", "--workdir", workdir, *named) == 0
    assert read_config(workdir).init_from == f"{NAME}@{first}"
    assert pin(NAME) != f"{NAME}@{first}"


def test_all_processes_take_the_commit_of_the_first(hub: Hub, lab: Lab, tmp_path: Path) -> None:
    answers: list[Any] = []

    class One(ProcessGroup):
        count = 2

        def __init__(self, index: int) -> None:
            self.index = index

        def run_on_first(self, what: str, make: Callable[[], Any]) -> Any:
            if self.index == 0:
                answers.append(json.loads(json.dumps(make())))
                return answers[-1]
            return answers.pop(0)

    configs = [apply_overrides(load_config(str(lab.config)), [f"--config.data.tokenizer={NAME}"]) for _ in range(2)]
    for cfg in configs:
        cfg.init_from = cfg.objective.distillation.teacher = NAME
    pin_commits(configs[0], tmp_path, One(0))
    prepared = prepare_on_first_process(configs[0], One(0))
    hub.publish("ada/tiny", {"config.json": b"{}"})
    pin_commits(configs[1], tmp_path, One(1))
    assert configs[0].to_dict() == configs[1].to_dict() and configs[0].init_from.startswith(f"{NAME}@")
    assert prepare_on_first_process(configs[1], One(1)).digests == prepared.digests and not answers


def test_a_model_is_used_by_name(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fill-mask", "the cat [MASK] the dog.", "--model", NAME]) == 0
    assert "the cat [MASK] the dog." in capsys.readouterr().out
    (tmp_path / "texts.txt").write_text("the cat sees the dog.\n")
    out = tmp_path / "vectors.npy"
    assert main(["embed", "--model", f"{NAME}@main", "--in", str(tmp_path / "texts.txt"), "--out", str(out)]) == 0
    assert np.load(out).shape == (1, 32)


def test_without_network_the_cache_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = pin(NAME)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"the cache does not hold it, and HF_HUB_OFFLINE forbids downloads"):
        load_pretrained(NAME)  # its weights are missing
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    load_pretrained(NAME)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    load_pretrained(NAME)
    assert pin(NAME) == pinned
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    load_pretrained(NAME)
    with pytest.raises(UserError, match=r"the Hub cannot be reached \(.*refused.*\), and the cache does not hold it"):
        load_pretrained("hub:ada/other")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hub:ada/absent", "there is no such repository, or it is private"),
        ("hub:ada/tiny@v2", "there is no such revision"),
        ("hub:ada/gated", "it is gated: accept its conditions"),
        ("hub:ada/closed", r"the Hub refuses access \(status 403\): log in"),
        ("hub:ada/expired", "log in with `hf auth login`"),
        ("hub:ada/down", "the Hub answers with status 503, and the cache does not hold it"),
        ("hub:ada/pickled", "hub:ada/pickled holds pytorch_model.bin, which is not read .*from_pretrained"),
        ("hub:ada/strange", "model_type 'perceiver' is not supported"),
        ("hub:ada/tiny/x", r"is not hub:NAME\[@REVISION\]"),
        ("hub:", r"is not hub:NAME\[@REVISION\]"),
    ],
)
def test_errors_are_one_line_without_the_token(hub: Hub, name: str, message: str) -> None:
    hub.refused = {"ada/gated": (403, "GatedRepo"), "ada/closed": (403, ""), "ada/expired": (401, "")}
    hub.refused["ada/down"] = (503, "")
    files = hub.repos["ada/tiny"][hub.branches["ada/tiny", "main"]]
    hub.publish("ada/pickled", {name: files[name] for name in ("config.json", "pytorch_model.bin")})
    strange = json.loads(files["config.json"]) | {"model_type": "perceiver"}
    hub.publish("ada/strange", files | {"config.json": json.dumps(strange).encode()})
    with pytest.raises(UserError, match=message) as caught:
        load_pretrained(name)
    assert "\n" not in str(caught.value) and TOKEN not in str(caught.value)
    assert "model.safetensors" not in hub.downloaded()


def test_the_endpoint_is_that_of_the_environment(hub: Hub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    code = f"from bertjax.io.hub import fetch; print(fetch({NAME!r}))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(hub.branches["ada/tiny", "main"]) and str(tmp_path / "home") in done.stdout
