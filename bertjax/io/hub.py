"""The Hugging Face Hub: names `hub:NAME[@REVISION]`, files in the cache of `huggingface_hub`, errors as one line.

That library brings its cache, its token and its offline mode (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, HF_ENDPOINT).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bertjax.errors import UserError, one_line

SMALL_FILES = (
    "*config.json",
    "*.safetensors.index.json",
    "*token*.json",
    "vocab.*",
    "word_*.json",
    "merges.txt",
    "*.model",
    "bertjax.json",
    "bertjax.safetensors",
    "modules.json",
    "*_*/*.safetensors",
)
"""Patterns of all files that are read but the weights: of descriptions, the tokenizer, sidecars, pooling modules."""
_NAME = re.compile(r"hub:([\w.-]+(?:/[\w.-]+)?)(?:@([^\s@]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


class HubName(NamedTuple):
    """A repository of models, and a branch, tag or commit of it."""

    repo: str
    revision: str = "main"

    @property
    def is_pinned(self) -> bool:
        """True where the revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None


def is_hub_name(name: object) -> bool:
    """Returns whether a text or path names a model on the Hub."""
    return str(name).startswith("hub:")


def parse_hub_name(name: str | os.PathLike[str]) -> HubName:
    """Returns the parts of `hub:NAME[@REVISION]`; raises `UserError` for another form."""
    match = _NAME.fullmatch(str(name))
    if match is None:
        raise UserError(f"{str(name)!r} is not hub:NAME[@REVISION], such as hub:answerdotai/ModernBERT-base@main")
    return HubName(match[1], match[2] or "main")


def pin(name: str | os.PathLike[str]) -> str:
    """Returns the name with the commit that its revision stands for now; asks the Hub, or without it the cache."""
    parts = parse_hub_name(name)
    return str(name) if parts.is_pinned else f"hub:{parts.repo}@{fetch(name).name}"


def fetch(name: str | os.PathLike[str]) -> Path:
    """Returns the folder of a revision in the cache, after downloading the files that it lacks, without progress bars.

    Raises:
        UserError: there is no such revision, or neither Hub nor cache hold the files.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    if shown:
        disable_progress_bars()
    try:
        return _snapshot(name, SMALL_FILES)
    finally:
        if shown:
            enable_progress_bars()


def fetch_weights(name: str, folder: Path, files: Sequence[str]) -> None:
    """Downloads the weights of a revision, with progress bars, where they are not in the cache.

    Args:
        name: `hub:NAME@COMMIT`.
        folder: what `fetch` returned for it.
        files: names of the files.

    Raises:
        UserError: as `fetch`.
    """
    if not all((folder / file).exists() for file in files):
        _snapshot(name, map(glob.escape, files))


def _snapshot(name: str | os.PathLike[str], patterns: Iterable[str]) -> Path:
    parts = parse_hub_name(name)
    with hub_errors(f"cannot read {name}"):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(parts.repo, revision=parts.revision, allow_patterns=list(patterns)))


def list_files(name: str | os.PathLike[str]) -> list[str]:
    """Returns the names of all files of a revision; errors as `fetch`."""
    parts = parse_hub_name(name)
    with hub_errors(f"cannot list the files of {name}"):
        from huggingface_hub import HfApi

        return HfApi().list_repo_files(parts.repo, revision=parts.revision)


@contextmanager
def hub_errors(action: str) -> Iterator[None]:
    """Converts any error of the Hub or the network to a `UserError` that begins with `action`."""
    try:
        yield
    except (UserError, GeneratorExit):
        raise
    except Exception as error:  # the libraries raise dozens of classes
        raise UserError(f"{action}: {explain_hub_error(error)}") from error


def explain_hub_error(error: BaseException) -> str:
    """Returns the reason of a failed request and what to do about it, on one line and without the user's token."""
    from huggingface_hub import errors

    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if isinstance(cause, errors.GatedRepoError):
        return f"it is gated: accept its conditions on its page, then {_LOGIN}"
    if isinstance(cause, errors.RevisionNotFoundError):
        return "there is no such revision; name a branch, a tag or a commit after @"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return f"there is no such repository, or it is private: check the name, or {_LOGIN}"
    if status in (401, 403):
        return f"the Hub refuses access (status {status}): {_LOGIN}"
    if isinstance(cause, errors.OfflineModeIsEnabled):
        return "the cache does not hold it, and HF_HUB_OFFLINE forbids downloads; unset it, or give a local folder"
    if isinstance(error, errors.LocalEntryNotFoundError):
        reason = f"answers with status {status}" if status else f"cannot be reached ({_without_token(cause)})"
        return f"the Hub {reason}, and the cache does not hold it; check the network, or give a local folder"
    return _without_token(cause)


def _without_token(error: BaseException) -> str:
    from huggingface_hub import get_token

    text, token = one_line(error), get_token()
    return text.replace(token, "...") if token else text
