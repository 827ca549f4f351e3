"""Uploading an export to the Hugging Face Hub, by the optional `huggingface_hub`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from bertjax.errors import UserError
from bertjax.hf.load import read_folder
from bertjax.hf.model_card import MARKER

_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*\w)?/[A-Za-z0-9](?:[\w.-]*\w)?")
_LONGEST_NAME = 96  # of the Hub


class HubApi(Protocol):
    """What is asked of `huggingface_hub.HfApi`."""

    def whoami(self) -> dict[str, Any]: ...

    def repo_exists(self, repo_id: str) -> bool: ...

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any: ...

    def upload_folder(
        self, *, repo_id: str, folder_path: str, commit_message: str, delete_patterns: list[str] | None
    ) -> Any: ...


def check_repository(repo: str, *, overwrite: bool = False, api: HubApi | None = None) -> bool:
    """Whether `OWNER/NAME` exists already; changes nothing.

    Raises `UserError` when it is no name, not of the user who is logged in, or exists and `overwrite` is not set. Call
    it before a long export: nothing is more annoying than an upload that fails at the end for want of a login.
    """
    if not _NAME.fullmatch(repo) or len(repo) > _LONGEST_NAME or "--" in repo or ".." in repo:
        raise UserError(f"push_to_hub wants OWNER/NAME, not {repo!r}")
    api = api or _hub_api()
    with _one_line("ask the Hub who is logged in (log in with `hf auth login`, or set HF_TOKEN)"):
        user = api.whoami()
    owners = [user["name"], *(org["name"] for org in user.get("orgs", []))]
    owner = repo.split("/")[0]
    if owner.lower() not in [name.lower() for name in owners]:
        raise UserError(
            f"{repo} is not yours: you are logged in as {user['name']}, who can write to {', '.join(owners)}"
        )
    with _one_line(f"look for {repo} on the Hub"):
        exists = api.repo_exists(repo)
    if exists and not overwrite:
        raise UserError(f"{repo} exists on the Hub; name another repository, or replace its files with --overwrite")
    return exists


def push_to_hub(
    folder: str | os.PathLike[str],
    repo: str,
    *,
    private: bool = True,
    overwrite: bool = False,
    message: str = "Export of bertjax",
    api: HubApi | None = None,
) -> str:
    """Uploads an export of ours, after reading it whole; returns its address.

    A repository that is new is private unless told otherwise; one that exists keeps its visibility, and with
    `overwrite` its present files are replaced by those of the folder, in one commit. Raises `UserError` as
    `check_repository` does, for a folder that is not an export of ours, and for what the Hub refuses.
    """
    folder, api = Path(folder), api or _hub_api()
    check_repository(repo, overwrite=overwrite, api=api)
    _require_export(folder)
    read_folder(folder)
    with _one_line(f"create {repo}"):
        api.create_repo(repo, private=private, exist_ok=overwrite)
    with _one_line(f"upload {folder} to {repo}"):
        api.upload_folder(
            repo_id=repo,
            folder_path=str(folder),
            commit_message=message,
            delete_patterns=["*"] if overwrite else None,
        )
    return f"https://huggingface.co/{repo}"


def _require_export(folder: Path) -> None:
    card = folder / "README.md"
    if not card.is_file() or MARKER not in card.read_text("utf-8", "replace"):
        raise UserError(f"{folder} is not an export of bertjax; only those are uploaded")
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    if links:
        raise UserError(f"{links[0]} is a link; what it points to would be uploaded")


def _hub_api() -> HubApi:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UserError("push_to_hub needs huggingface_hub, not installed: pip install 'bertjax[hub]'") from None
    return HfApi()


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Any refusal of the Hub or of the network as one line: its library raises dozens of classes."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"cannot {what}: {text}") from error
