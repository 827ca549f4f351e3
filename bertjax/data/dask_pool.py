"""Workers of a dask cluster that tokenize batches of documents, in place of processes of this host.

Reading, filtering and writing stay in one process; batches travel to the cluster and token ids back, in order, so that
the corpus has the same bytes. dask repeats the batches of a worker that dies on another one.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertjax.data.sentence_splitter import split_sentences
from bertjax.data.tokenize_documents import DocumentError, TokenizedDocuments, tokenize_documents
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.data.workers import WorkerDiedError
from bertjax.errors import UserError, one_line

_CONNECT_SECONDS = 10
_LIBRARIES = ("bertjax", "tokenizers", "sentencepiece")
_TOKENIZERS: dict[str, Tokenizer] = {}
"""Tokenizers of a worker, by digest."""


class DaskPool:
    """The workers of a cluster with the same tokenizer; use it in a `with`.

    Args:
        tokenizer: Tokenizer of the corpus.
        scheduler: Address of the scheduler, such as tcp://host:8786, or path of its scheduler file.

    Raises:
        UserError: The scheduler does not answer, has no workers, or they have other versions of the libraries.
    """

    def __init__(self, tokenizer: Tokenizer, scheduler: str) -> None:
        import distributed

        self._scheduler, self._digest = scheduler, tokenizer.digest
        where = {"scheduler_file": scheduler} if Path(scheduler).is_file() else {"address": scheduler}
        try:
            self._client = distributed.Client(**where, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise self._failed(f"does not answer within {_CONNECT_SECONDS} s ({one_line(error)})") from error
        try:
            with tempfile.TemporaryDirectory() as folder:
                save_tokenizer(tokenizer, Path(folder) / "tokenizer")
                files = {path.name: path.read_bytes() for path in (Path(folder) / "tokenizer").iterdir()}
            self._client.register_plugin(_plugin(files, tokenizer.digest))
            if not self._client.nthreads():
                raise self._failed("has no workers; start some, such as with `dask worker`")
        except UserError:
            self._client.close()
            raise
        except Exception as error:  # whatever a worker raised, or its version of dask
            self._client.close()
            raise self._failed(f"cannot be used: {one_line(error)}") from error

    def _failed(self, text: str) -> UserError:
        return UserError(f"data.dask_scheduler={self._scheduler}: the dask cluster {text}")

    def map(self, lists: Iterable[list[str]]) -> Iterator[TokenizedDocuments]:
        """Yields the result of `tokenize_documents` for every batch, in order, a few batches per thread ahead.

        Raises `DocumentError` or `WorkerDiedError` at the position of the batch.
        """
        pending: deque[Any] = deque()
        for number, documents in enumerate(lists):
            if number % 64 == 0:  # a cluster may grow
                ahead = 2 * sum(self._client.nthreads().values()) + 1
            pending.append(self._client.submit(_tokenize, self._digest, documents, pure=False))
            if len(pending) > ahead:
                yield self._result(pending.popleft())
        while pending:
            yield self._result(pending.popleft())

    def _result(self, future: Any) -> TokenizedDocuments:
        try:
            return TokenizedDocuments(*future.result())
        except DocumentError:
            raise
        except Exception as error:  # lost connections, killed workers and cancelled futures have no common type
            raise WorkerDiedError(f"the dask cluster {self._scheduler} failed: {one_line(error)}") from error

    def close(self) -> None:
        """Ends the connection; the cluster stays."""
        self._client.close()

    def __enter__(self) -> DaskPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plugin(files: dict[str, bytes], digest: str) -> Any:
    """Returns a plugin that loads the tokenizer on every worker, also on those that join later."""
    import distributed

    class TokenizerPlugin(distributed.WorkerPlugin):
        name = f"bertjax-tokenizer-{digest}"
        versions = _versions()

        def setup(self, worker: Any) -> None:
            _install(files, digest, self.versions)

    return TokenizerPlugin()


def _install(files: dict[str, bytes], digest: str, versions: dict[str, str]) -> None:
    if (here := _versions()) != versions:
        raise RuntimeError(f"a worker has {here} and this process {versions}; install the same versions")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        tokenizer = load_tokenizer(folder)
    assert tokenizer.digest == digest, "the tokenizer changed on its way to this worker"
    _TOKENIZERS[digest] = tokenizer


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _LIBRARIES}


def _tokenize(digest: str, documents: list[str]) -> tuple[Any, ...]:
    return tuple(tokenize_documents(documents, _TOKENIZERS[digest], split_sentences))
