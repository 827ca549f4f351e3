"""Object stores (s3://, gs://, az://, memory://) through `fsspec`: paths, whole objects, retries, errors as one line.

`fsspec` finds credentials and endpoints as the stores' own tools do: AWS_PROFILE, AWS_ENDPOINT_URL,
GOOGLE_APPLICATION_CREDENTIALS, STORAGE_EMULATOR_HOST. An object is replaced as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from bertjax.errors import UserError, one_line
from bertjax.io.atomic import atomic_file

T = TypeVar("T")

PACKAGES = {"s3": "s3", "gs": "gcs", "az": "azure", "memory": ""}
"""Schemes, and the extra of bertjax that brings the library of each."""
PATIENCE = 300.0
"""Seconds during which a request that failed is tried again."""
_LONGEST_PAUSE = 20.0
_THREADS = 8
_URL = re.compile(rf"({'|'.join(PACKAGES)}):/{{1,2}}(?=[^/])")  # a `Path` has one slash
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError, ImportError)
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY")
_SIGNATURE = re.compile(r"(?i)(x-amz-(?:signature|credential|security-token)|sig|signature|token)=[^&\s]+")
_UNAUTHORIZED = re.compile(
    r"(?i)credential|forbidden|access ?denied|unauthori[sz]ed|signature|InvalidAccessKeyId|\b40[13]\b"
)


class Entry(NamedTuple):
    """Size of an object, and a tag that changes with its content."""

    size: int
    tag: str


def is_url(path: object) -> bool:
    """Returns whether a text or `Path` names an object store."""
    return _URL.match(os.fspath(path) if isinstance(path, os.PathLike) else str(path)) is not None


def to_url(path: str | os.PathLike[str]) -> str:
    """Returns the URL of a text or `Path`, whose double slash `pathlib` drops."""
    return _URL.sub(r"\1://", os.fspath(path), count=1).rstrip("/")


def local_path(path: str | os.PathLike[str]) -> str:
    """Returns a path without file://, and with the home folder for ~."""
    text = os.fspath(path)
    return os.path.expanduser(re.sub(r"^file:(//)?(?=/)", "", text))


def filesystem(url: str) -> Any:
    """Returns the file system of `fsspec` for a URL, which lists a folder anew every time."""
    import fsspec

    scheme = to_url(url).partition(":")[0]
    try:
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        raise UserError(f"{url} needs a package; pip install 'bertjax[{PACKAGES[scheme]}]' ({error})") from None


def open_binary(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a file or object to read its bytes as a stream; raises `OSError` with one line that holds no secret."""
    if not is_url(path):
        return open(local_path(path), "rb")
    url = to_url(path)
    file: IO[bytes] = request(url, lambda: filesystem(url).open(url, "rb"))
    return file


def size_of(path: str | os.PathLike[str]) -> int:
    """Returns the bytes of a file or object; raises `OSError`."""
    if not is_url(path):
        return os.path.getsize(local_path(path))
    url = to_url(path)
    return int(request(url, lambda: filesystem(url).info(url))["size"])


def expand_url(pattern: str) -> dict[str, Entry]:
    """Returns the objects that a URL names, or that match it as a pattern, sorted; raises `OSError`."""
    url = to_url(pattern)
    fs = filesystem(url)

    def found() -> dict[str, Any]:
        if fs.isfile(url):
            return {url: fs.info(url)}
        result: dict[str, Any] = fs.glob(url, detail=True) if re.search(r"[*?\[]", url) else {}
        return result

    entries = request(url, found)
    return {
        fs.unstrip_protocol(name).replace("gcs://", "gs://"): _entry(info)
        for name, info in sorted(entries.items())
        if info["type"] == "file"
    }


def request(url: str, action: Callable[[], T], patience: float | None = None) -> T:
    """Returns the result of a request to a store, which is tried again while it fails for a reason that may pass.

    Args:
        url: what is read or written, for the message.
        action: the request; repeating it must do no harm.
        patience: seconds; `PATIENCE` by default.

    Raises:
        OSError: the reason on one line, without credentials.
    """
    end, pause = time.monotonic() + (PATIENCE if patience is None else patience), 0.25
    while True:
        try:
            return action()
        except Exception as error:  # every store has its own
            known = isinstance(error, UserError | FileNotFoundError | FileExistsError)
            refused = isinstance(error, _FINAL) or _UNAUTHORIZED.search(f"{type(error).__name__} {error}")
            if known:
                raise
            if refused or time.monotonic() + pause > end:
                raise OSError(getattr(error, "errno", None) or errno.EIO, _explain(error, bool(refused)), url) from None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _explain(error: Exception, refused: bool) -> str:
    text = one_line(error)
    for name in _SECRETS:
        if len(value := os.environ.get(name, "")) > 3:
            text = text.replace(value, "...")
    text = f"{type(error).__name__}: " + _SIGNATURE.sub(r"\1=...", text)
    return f"{text}; check the credentials, and what they may do with this bucket" if refused else text


def _entry(info: dict[str, Any]) -> Entry:
    names = ("ETag", "etag", "md5Hash", "generation", "LastModified", "updated", "created", "mtime")
    return Entry(int(info["size"]), next((str(info[name]) for name in names if info.get(name)), ""))


class Store:
    """The objects below a URL, by their names relative to it.

    Args:
        url: URL of the folder.

    Raises (all methods):
        OSError: the store refuses, or fails for longer than `PATIENCE`.
    """

    def __init__(self, url: str) -> None:
        self.url = to_url(url)
        self._fs = filesystem(self.url)

    def list(self, prefix: str = "") -> dict[str, Entry]:
        """Returns size and tag of every object whose name begins with a folder's, sorted by name."""
        root = self._fs._strip_protocol(self.url)
        found = request(self.url, lambda: self._fs.find(self._path(prefix), detail=True))
        names = {path.removeprefix(root).lstrip("/"): _entry(info) for path, info in found.items()}
        return dict(sorted(names.items()))

    def read(self, name: str) -> bytes:
        """Returns the content of an object; raises `FileNotFoundError` where there is none."""
        content: bytes = request(self._path(name), lambda: self._fs.cat_file(self._path(name)))
        return content

    def write(self, name: str, content: bytes, *, new: bool = False) -> None:
        """Writes an object; with `new` raises `FileExistsError` where there is one already."""
        mode = {"mode": "create"} if new else {}
        request(self._path(name), lambda: self._fs.pipe_file(self._path(name), content, **mode))

    def upload(self, files: Iterable[tuple[Path, str]]) -> None:
        """Uploads files as objects, several at a time."""
        self._each(lambda pair: self._fs.put_file(os.fspath(pair[0]), self._path(pair[1])), files)

    def download(self, files: Iterable[tuple[str, Path]]) -> None:
        """Downloads objects, several at a time; every file appears complete or not at all."""
        self._each(self._download, files)

    def _download(self, pair: tuple[str, Path]) -> None:
        name, path = pair
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file, self._fs.open(self._path(name), "rb") as stored:
            while block := stored.read(1 << 22):
                file.write(block)

    def remove(self, names: Iterable[str]) -> None:
        """Deletes objects, several at a time; what is not there is no error."""

        def delete(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

        self._each(delete, names)

    def move(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Gives objects other names, one after the other; the store copies them."""
        for old, new in pairs:
            request(self._path(old), lambda old=old, new=new: self._fs.cp_file(self._path(old), self._path(new)))  # type: ignore[misc]
            self.remove([old])

    def _each(self, action: Callable[[Any], None], items: Iterable[Any]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            tuple(pool.map(lambda item: request(f"{self.url}/{item}", lambda: action(item)), items))

    def _path(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url
