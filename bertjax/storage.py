"""Object stores (s3://, gs://) through `fsspec`: paths, whole objects, retries, errors as one line.

`fsspec` finds credentials and endpoints as the stores' own tools do: AWS_PROFILE, AWS_ENDPOINT_URL,
GOOGLE_APPLICATION_CREDENTIALS, STORAGE_EMULATOR_HOST. An object is replaced as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import glob
import hashlib
import io
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")

EXTRAS = {"s3": "s3", "gs": "gcs", "memory": ""}
"""Schemes, and the extra of bertjax that brings the library of each; memory:// is that of the process, for tests."""
PATIENCE = 300.0
"""Seconds during which a request that failed is tried again."""
_LONGEST_PAUSE = 20.0
_LONGEST_TEXT = 300
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/{1,2}|$)")  # a `Path` has one slash; one letter is a drive
_BLOCK_BYTES = 1 << 22
_FINAL: tuple[type[Exception], ...] = (PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
_FINAL += (ValueError, TypeError, LookupError, AttributeError)
_FINAL_ERRNO = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE)
_FINAL_NAMES = re.compile(r"Profile|Config|ParamValidation|Region|UnknownService")  # of botocore
_PASSING_STATUS = (408, 409, 425, 429)
_SECRETS = re.compile(r"(AWS|AZURE|GOOGLE)_\w*(KEY|SECRET|TOKEN|STRING|PASSWORD)")
_SIGNATURE = re.compile(r"(?i)(x-amz-(?:signature|credential|security-token)|sig|signature|token|AccountKey)=[^&;\s]+")
_UNAUTHORIZED = re.compile(
    r"(?i)credential|forbidden|access ?denied|unauthori[sz]ed|anonymous|signature|InvalidAccessKeyId|\b40[13]\b"
)


class ObjectInfo(NamedTuple):
    """Size of an object, and a tag that changes with its content."""

    size: int
    tag: str


def is_url(path: object) -> bool:
    """Returns whether a text or `Path` names an object store and a bucket; the scheme in letters of any case."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else str(path)
    match = _SCHEME.match(text)
    return match is not None and match[1].lower() in EXTRAS and text[match.end() : match.end() + 1] not in ("", "/")


def to_url(path: str | os.PathLike[str]) -> str:
    """Returns the URL of a text or `Path`, whose double slash `pathlib` drops."""
    return _SCHEME.sub(lambda match: f"{match[1].lower()}://", os.fspath(path), count=1).rstrip("/")


def local_path(path: str | os.PathLike[str]) -> str:
    """Returns a path without file://, and with the home folder for ~; a URL of a store as it is.

    Raises:
        OSError: the path begins with another scheme, or names a store without a bucket.
    """
    text = re.sub(r"(?i)^file:(//)?(?=/)", "", os.fspath(path))
    match = None if is_url(text) else _SCHEME.match(text)
    if match is not None and (match[2] or match[1].lower() in EXTRAS):
        reason = "names no bucket" if match[1].lower() in EXTRAS else f"{match[1]}: is none of s3://, gs://, file://"
        raise OSError(errno.EINVAL, f"{reason}; for a local folder of this name write ./{text}", text)
    return os.path.expanduser(text)


def user_cache() -> Path:
    """Returns the folder of what bertjax keeps for a user: $XDG_CACHE_HOME/bertjax, or ~/.cache/bertjax."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "bertjax"


def copy_folder(url: str | os.PathLike[str]) -> Path:
    """Returns the local folder of the copy of a URL, in $XDG_CACHE_HOME or ~/.cache; it need not exist."""
    url = to_url(url)
    cache = user_cache() / "stores"
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", url)[-80:].strip("-")
    return cache / f"{readable}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def filesystem(url: str) -> Any:
    """Returns the file system of `fsspec` for a URL; raises `OSError` where its package is not installed."""
    import fsspec

    scheme = to_url(url).partition(":")[0]
    try:
        return request(url, lambda: fsspec.filesystem(scheme, use_listings_cache=False))
    except ImportError as error:
        advice = f"{scheme}:// needs a package; pip install 'bertjax[{EXTRAS[scheme]}]' ({error})"
        raise OSError(errno.EINVAL, advice, url) from None


def open_binary(path: str | os.PathLike[str], block_bytes: int = _BLOCK_BYTES) -> IO[bytes]:
    """Opens a file or object to read its bytes; raises `OSError` with one line that holds no secret, also on reads."""
    if not is_url(path):
        return open(local_path(path), "rb")
    return io.BufferedReader(_ObjectFile(to_url(path)), block_bytes)


class _ObjectFile(io.RawIOBase):
    """Bytes of an object by ranges: each is complete, and all are of one version of the object, or an `OSError`."""

    def __init__(self, url: str) -> None:
        self._url, self._fs, self._position, self._entry = url, filesystem(url), 0, entry_of(url)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a byte of the object."""
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer; returns the number of bytes, 0 at the end of the object."""
        end = min(self._position + len(buffer), self._entry.size)
        if (size := end - self._position) <= 0:
            return 0
        buffer[:size] = request(self._url, functools.partial(self._range, self._position, end))
        self._position = end
        return size

    def _range(self, begin: int, end: int) -> bytes:
        try:
            block: bytes = self._fs.cat_file(self._url, start=begin, end=end)
        except Exception:
            self._require_unchanged()  # a range that is not there any more
            raise
        is_complete = len(block) == end - begin
        if not is_complete or end == self._entry.size:
            self._require_unchanged()
        if not is_complete:
            raise OSError(errno.EIO, f"{len(block):,} of {end - begin:,} bytes arrived")
        return block

    def _require_unchanged(self) -> None:
        if describe(self._fs.info(self._url)) != self._entry:
            raise OSError(errno.ESTALE, "it changed while it was read; start again")


def entry_of(path: str | os.PathLike[str]) -> ObjectInfo:
    """Returns size and tag of a file or object; raises `OSError`."""
    if not is_url(path):
        stat = os.stat(local_path(path))
        return ObjectInfo(stat.st_size, str(stat.st_mtime_ns))
    url = to_url(path)
    fs = filesystem(url)
    info = request(url, lambda: fs.info(url))
    if info["type"] != "file":
        raise FileNotFoundError(errno.ENOENT, "no such object", url)
    return describe(info)


def size_of(path: str | os.PathLike[str]) -> int:
    """Returns the bytes of a file or object; raises `OSError`."""
    return entry_of(path).size


def exists(path: str) -> bool:
    """Returns whether there is a file, folder or object; raises `OSError` where a store does not answer."""
    if not is_url(path):
        return os.path.exists(local_path(path))
    with contextlib.suppress(FileNotFoundError):
        return bool(entry_of(path))
    return False


def expand_url(pattern: str) -> dict[str, ObjectInfo]:
    """Returns the objects that a URL names, or that match it as a pattern, sorted; raises `OSError`.

    They are matched here, because `glob` of `fsspec` leaves out folders that it could not list.
    """
    url = to_url(pattern)
    with contextlib.suppress(FileNotFoundError):
        return {url: entry_of(url)}
    scheme, bucket, *parts = url.replace("://", "/", 1).split("/")
    if not glob.has_magic(url):
        return {}
    if glob.has_magic(bucket):
        raise OSError(errno.EINVAL, "the bucket must have a name, not a pattern", url)
    first = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    folder, parts = "/".join([f"{scheme}://{bucket}", *parts[:first]]), parts[first:]
    fs = filesystem(url)
    root = fs._strip_protocol(folder).rstrip("/")
    is_flat = len(parts) == 1 and parts[0] != "**"
    try:
        infos = request(
            folder, lambda: fs.ls(folder, detail=True) if is_flat else [*fs.find(folder, detail=True).values()]
        )
    except FileNotFoundError:
        return {}
    matches = {
        f"{scheme}://{info['name'].lstrip('/')}": describe(info)
        for info in infos
        if info["type"] == "file" and _fits(info["name"].removeprefix(root).lstrip("/").split("/"), parts)
    }
    return dict(sorted(matches.items()))


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts or not names:
        return not names and not [part for part in parts if part != "**"]
    is_hidden = names[0].startswith(".")
    if parts[0] == "**":
        return _fits(names, parts[1:]) or (not is_hidden and _fits(names[1:], parts))
    is_match = fnmatch.fnmatchcase(names[0], parts[0]) and (not is_hidden or parts[0].startswith("."))
    return is_match and _fits(names[1:], parts[1:])


def request(url: str, action: Callable[[], T], patience: float | None = None) -> T:
    """Returns the result of a request to a store, which is tried again while it fails for a reason that may pass.

    Raises:
        OSError: the reason on one line, without credentials.
    """
    end, pause = time.monotonic() + (PATIENCE if patience is None else patience), 0.25
    while True:
        try:
            return action()
        except ImportError:
            raise
        except (FileNotFoundError, FileExistsError) as error:  # of a local file if it has a number
            missing = isinstance(error, FileNotFoundError)
            text = error.strerror or ("no such object" if missing else "it exists already")
            number = errno.ENOENT if missing else errno.EEXIST
            raise OSError(number, text, error.filename or url) from None
        except Exception as error:  # every store has its own
            refused = _is_refused(error, url)
            if refused or _is_final(error) or time.monotonic() + pause > end:
                number = errno.EACCES if refused else getattr(error, "errno", None) or errno.EIO
                raise OSError(number, _explain(error, refused), url) from None
            if 2.0 <= pause < 4.0:
                log.warning("%s: %s; trying again", url, _explain(error, refused))
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _is_refused(error: Exception, url: str) -> bool:
    text = f"{type(error).__name__}: {error}"
    for name in sorted(url.partition("://")[2].split("/"), key=len, reverse=True):
        text = text.replace(name, "") if len(name) > 2 else text  # a key may be called credentials
    return isinstance(error, PermissionError) or _UNAUTHORIZED.search(text) is not None


def _is_final(error: Exception) -> bool:
    if isinstance(error, _FINAL) or getattr(error, "errno", None) in _FINAL_ERRNO:
        return True
    codes = [getattr(error, name, None) for name in ("status", "status_code", "code")]
    status = next((int(str(code)) for code in codes if str(code).isdecimal()), 500)
    return (400 <= status < 500 and status not in _PASSING_STATUS) or bool(_FINAL_NAMES.search(type(error).__name__))


def _explain(error: Exception, refused: bool) -> str:
    text = getattr(error, "strerror", None) or str(error)
    for name, value in os.environ.items():
        if _SECRETS.match(name) and len(value) > 3:
            text = text.replace(value, "...")
    text = " ".join(_SIGNATURE.sub(r"\1=...", text).split())[:_LONGEST_TEXT] or type(error).__name__
    text = text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"
    return f"{text}; check the credentials, and what they may do with this bucket" if refused else text


def describe(info: dict[str, Any]) -> ObjectInfo:
    """Returns size and tag of what a file system of `fsspec` says about an object."""
    names = ("ETag", "md5Hash", "etag", "generation", "LastModified", "updated", "created", "mtime")
    tag = next((str(info[name]) for name in names if info.get(name)), "")
    return ObjectInfo(int(info["size"]), tag.strip('"'))
