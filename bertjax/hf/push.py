"""Uploads an export to the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import HFValidationError, validate_repo_id

from bertjax.errors import UserError, one_line
from bertjax.hf import native_format
from bertjax.hf.export_plan import SIDECAR_CONFIG, SIDECAR_WEIGHTS
from bertjax.hf.load import read_folder
from bertjax.hf.safe_files import CONFIG, GRAPH, INDEX, WEIGHTS
from bertjax.hf.save import is_export
from bertjax.io.foreign_files import TOKENIZER_FILES
from bertjax.io.hub import hub_errors

_FILES = {
    CONFIG,
    WEIGHTS,
    INDEX,
    GRAPH,
    f"{GRAPH}.data",
    *TOKENIZER_FILES,
    SIDECAR_CONFIG,
    SIDECAR_WEIGHTS,
    "README.md",
}
_FILES |= native_format.code_files().keys()
_FILES |= {"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"}
_NUMBERED = re.compile(r"model-\d{5}-of-\d{5}\.safetensors|\d+_[A-Za-z]+/(config\.json|model\.safetensors)")
"""Shards, and modules of sentence-transformers."""


def check_repository(repo: str, *, overwrite: bool = False, api: HfApi | None = None) -> bool:
    """Returns whether a repository exists; changes nothing. Call it before a long export.

    Args:
        repo: OWNER/NAME.
        overwrite: accept a repository that exists.
        api: the Hub; None = `huggingface_hub.HfApi()`.

    Raises:
        UserError: the name is malformed, the owner is not the user who is logged in or one of his organizations, or the
            repository exists and `overwrite` is not set.
    """
    api = api or HfApi()
    _check_name(repo)
    with hub_errors("cannot ask the Hub who is logged in (log in with `hf auth login`, or set HF_TOKEN)"):
        user = api.whoami()
    owners = [user["name"], *(org["name"] for org in user.get("orgs", []))]
    owner = repo.split("/")[0]
    if owner.lower() not in [name.lower() for name in owners]:
        raise UserError(
            f"{repo} is not yours: you are logged in as {user['name']}, who can write to {', '.join(owners)}"
        )
    with hub_errors(f"cannot look for {repo} on the Hub"):
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
    api: HfApi | None = None,
) -> str:
    """Uploads an export, after reading it whole; returns its address.

    Args:
        folder: what `save_pretrained` wrote.
        repo, api: as of `check_repository`.
        private: visibility of a new repository; an existing one keeps its own.
        overwrite: replace the files of an existing repository, in one commit.
        message: commit message.

    Raises:
        UserError: as `check_repository`; or the folder is not an export, or the Hub refused it.
    """
    folder, api = Path(folder), api or HfApi()
    check_repository(repo, overwrite=overwrite, api=api)
    if not is_export(folder):
        raise UserError(f"{folder} is not an export of bertjax; only those are uploaded")
    names = _files_to_upload(folder)
    read_folder(folder)
    with hub_errors(f"cannot create {repo}"):
        api.create_repo(repo, private=private, exist_ok=overwrite)
    with hub_errors(f"cannot upload {folder} to {repo}"):
        api.upload_folder(
            repo_id=repo,
            folder_path=str(folder),
            commit_message=message,
            allow_patterns=names,
            delete_patterns=["*"] if overwrite else None,
        )
    return f"https://huggingface.co/{repo}"


def _files_to_upload(folder: Path) -> list[str]:
    """Returns the names of all files; raises `UserError` for a link, or a file that no export has."""
    names = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise UserError(f"{path} is a link; the file that it points to would be uploaded")
        name = path.relative_to(folder).as_posix()
        if not path.is_dir():
            if name not in _FILES and not _NUMBERED.fullmatch(name):
                raise UserError(f"{path} is not a file of an export; only those are uploaded: move it away")
            names.append(name)
    return names


def _check_name(repo: str) -> None:
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(f"--push-to-hub needs OWNER/NAME, not {repo!r}: {one_line(error)}") from None
    if "/" not in repo:
        raise UserError(f"--push-to-hub needs OWNER/NAME, not {repo!r}")
