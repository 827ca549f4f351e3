"""Uploads, against an API object that only records its calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from parity.compare import random_params

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError
from bertjax.hf.push import check_repository, push_to_hub
from bertjax.hf.save import save_pretrained

CONFIG = EncoderConfig(
    vocab_size=30, hidden_size=12, num_layers=1, num_heads=3, intermediate_size=8, max_position_embeddings=8
)


class FakeHub:
    """A Hub with one user, one organization and some repositories."""

    def __init__(self, existing: tuple[str, ...] = (), logged_in: bool = True):
        self.existing, self.logged_in = set(existing), logged_in
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def whoami(self) -> dict[str, Any]:
        if not self.logged_in:
            raise OSError("Token is required,\nbut no token found.")
        return {"name": "ada", "orgs": [{"name": "Analytics"}]}

    def repo_exists(self, repo_id: str) -> bool:
        return repo_id in self.existing

    def create_repo(self, repo_id: str, **options: Any) -> None:
        self.calls.append((repo_id, options))

    def upload_folder(self, *, repo_id: str, folder_path: str, **options: Any) -> None:
        files = {str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()}
        self.calls.append((repo_id, {"files": files, **options}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push") / "export"
    save_pretrained(folder, random_params(CONFIG, ("mlm",)), CONFIG, heads=("mlm",))
    return folder


def test_a_new_repository_is_private(folder: Path) -> None:
    hub = FakeHub()
    assert push_to_hub(folder, "ada/engine", api=hub, message="Step 3") == "https://huggingface.co/ada/engine"
    files = {"config.json", "model.safetensors", "README.md"}
    assert hub.calls == [
        ("ada/engine", {"private": True, "exist_ok": False}),
        (
            "ada/engine",
            {"files": files, "commit_message": "Step 3", "allow_patterns": sorted(files), "delete_patterns": None},
        ),
    ]


def test_public_and_of_an_organization(folder: Path) -> None:
    hub = FakeHub()
    push_to_hub(folder, "analytics/engine", private=False, api=hub)
    assert hub.calls[0] == ("analytics/engine", {"private": False, "exist_ok": False})


def test_an_existing_repository_is_replaced_only_on_request(folder: Path) -> None:
    hub = FakeHub(existing=("ada/engine",))
    with pytest.raises(UserError, match="exists on the Hub"):
        push_to_hub(folder, "ada/engine", api=hub)
    assert hub.calls == []
    push_to_hub(folder, "ada/engine", overwrite=True, api=hub)
    assert hub.calls[0][1] == {"private": True, "exist_ok": True}
    assert hub.calls[1][1]["delete_patterns"] == ["*"]


@pytest.mark.parametrize("repo", ["engine", "ada/", "/engine", "ada/en gine", "ada/../x", "a/b/c", "ada/" + "x" * 99])
def test_a_name_that_is_none(repo: str) -> None:
    with pytest.raises(UserError, match="OWNER/NAME"):
        check_repository(repo, api=FakeHub())


def test_refusals_are_one_line() -> None:
    with pytest.raises(UserError, match="you are logged in as ada, who can write to ada, Analytics"):
        check_repository("babbage/engine", api=FakeHub())
    with pytest.raises(UserError, match="hf auth login") as raised:
        check_repository("ada/engine", api=FakeHub(logged_in=False))
    assert "no token found" in str(raised.value) and "\n" not in str(raised.value)


def test_only_whole_exports_of_ours_are_uploaded(folder: Path, tmp_path: Path) -> None:
    hub = FakeHub()
    (tmp_path / "notes.txt").write_text("private")
    with pytest.raises(UserError, match="not an export"):
        push_to_hub(tmp_path, "ada/engine", api=hub)
    for name in ("config.json", "README.md", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "notes.txt").unlink()
    (tmp_path / "link").symlink_to(Path.home())
    with pytest.raises(UserError, match="is a link"):
        push_to_hub(tmp_path, "ada/engine", api=hub)
    (tmp_path / "link").unlink()
    (tmp_path / ".env").write_text("TOKEN=1")
    with pytest.raises(UserError, match=r"\.env is not a file of an export"):
        push_to_hub(tmp_path, "ada/engine", api=hub)
    (tmp_path / ".env").unlink()
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(UserError, match="not a readable safetensors file"):
        push_to_hub(tmp_path, "ada/engine", api=hub)
    assert hub.calls == []


def test_what_the_hub_says_is_passed_on(folder: Path) -> None:
    class Full(FakeHub):
        def upload_folder(self, **_: Any) -> None:
            raise RuntimeError("403 Forbidden:\n  storage quota exceeded")

    with pytest.raises(UserError, match=r"cannot upload .*: 403 Forbidden: storage quota exceeded$"):
        push_to_hub(folder, "ada/engine", api=Full())


def test_the_library_has_what_we_ask_of_it() -> None:
    inspect, hub = pytest.importorskip("inspect"), pytest.importorskip("huggingface_hub")
    methods = {
        "whoami": set(),
        "repo_exists": {"repo_id"},
        "create_repo": {"repo_id", "private", "exist_ok"},
        "upload_folder": {"repo_id", "folder_path", "commit_message", "delete_patterns"},
    }
    for name, arguments in methods.items():
        assert arguments <= set(inspect.signature(getattr(hub.HfApi, name)).parameters)
