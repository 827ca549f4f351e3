"""Processes that tokenize batches of documents, fed through pipes.

Each is a fresh Python (`exec`, never a fork of a threaded process), and only text and numbers go through the pipes: no
shared memory remains if a process dies, and a process whose parent is gone reads the end of its input and ends.

Workers of a dask cluster may take their part: batches travel to the cluster and token ids back, in order, so that the
corpus has the same bytes. dask repeats the batches of a worker that dies on another one.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import numpy as np

from bertjax.data.sentence_splitter import split_sentences
from bertjax.data.tokenize_documents import DocumentError, TokenizedDocuments, id_type, tokenize_documents
from bertjax.data.tokenizer import Tokenizer
from bertjax.data.tokenizer_io import load_tokenizer, save_tokenizer
from bertjax.errors import UserError, one_line

_PACKAGES = str(Path(__file__).resolve().parents[2])
_COMMAND = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from bertjax.data.workers import serve; serve()"
_PREFIX = "bertjax-tokenizer-"
_HEADER = struct.Struct("<qq")
_FAILURE = -1


class WorkerDiedError(Exception):
    """A process ended before it answered; the message says how."""


class WorkerPool:
    """`count` processes with the same tokenizer, started at once; use it in a `with`."""

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
        self._all: list[subprocess.Popen[bytes]] = []
        save_tokenizer(tokenizer, Path(self._folder.name) / "tokenizer")
        try:
            self._all = [_start(Path(self._folder.name) / "tokenizer", tokenizer.digest) for _ in range(count)]
        except BaseException:
            self.close()
            raise
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._all:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="feeds-a-worker")

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes."""
        return [process.pid for process in self._all]

    def map(self, lists: Iterable[list[str]]) -> Iterator[TokenizedDocuments]:
        """Yields the result of `tokenize_documents` for every batch, in order, a few batches ahead.

        Raises `DocumentError` or `WorkerDiedError` at the position of the batch.
        """
        pending: deque[Future[TokenizedDocuments]] = deque()
        for documents in lists:
            pending.append(self._threads.submit(self._one, documents))
            if len(pending) > 2 * len(self._all):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _one(self, documents: list[str]) -> TokenizedDocuments:
        process = self._idle.get()
        try:
            assert process.stdin is not None and process.stdout is not None
            try:
                _send_texts(process.stdin, documents)
                return _receive(process.stdout)
            except (OSError, EOFError):
                raise WorkerDiedError(_how_it_ended(process)) from None
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Ends the processes, whatever they are doing."""
        for process in self._all:
            process.kill()
        for process in self._all:
            process.wait()
        if hasattr(self, "_threads"):
            self._threads.shutdown(cancel_futures=True)
        for process in self._all:
            for pipe in (process.stdin, process.stdout):
                _close(pipe)
        self._folder.cleanup()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start(folder: Path, digest: str) -> subprocess.Popen[bytes]:
    # One process a core: the threads of the libraries would only be in each other's way.
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _COMMAND, str(folder), digest]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _close(pipe: IO[bytes] | None) -> None:
    try:
        if pipe is not None:
            pipe.close()
    except OSError:  # what it still held for a process that is gone
        pass


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return f"process {process.pid} closed its pipe"
    if code < 0:
        return f"process {process.pid} was killed by {signal.Signals(-code).name}"
    return f"process {process.pid} ended with status {code}"


def serve() -> None:
    """Answers the batches on the standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not come between the answers
    questions = sys.stdin.buffer
    from bertjax.data.sentence_splitter import split_sentences

    folder, digest = sys.argv[1:]
    tokenizer = load_tokenizer(folder)
    assert tokenizer.digest == digest, "the tokenizer changed on its way to this process"
    try:
        while (documents := _receive_texts(questions)) is not None:
            try:
                _send(answers, tokenize_documents(documents, tokenizer, split_sentences))
            except DocumentError as error_text:
                _send_failure(answers, error_text)
    except BrokenPipeError:
        pass
    # The parent was killed, or it would have ended this process: it cannot clean up any more.
    if (left := Path(folder).parent).name.startswith(_PREFIX):
        shutil.rmtree(left, ignore_errors=True)
    os._exit(0)  # nobody listens to what is still in the pipe


def _send_texts(pipe: IO[bytes], documents: Sequence[str]) -> None:
    raw = [document.encode() for document in documents]
    lengths = np.fromiter(map(len, raw), np.int64, len(raw))
    pipe.write(_HEADER.pack(len(raw), 0) + lengths.tobytes())
    pipe.write(b"".join(raw))
    pipe.flush()


def _receive_texts(pipe: IO[bytes]) -> list[str] | None:
    try:
        count, _ = _HEADER.unpack(_read(pipe, _HEADER.size))
        ends = np.cumsum(np.frombuffer(_read(pipe, 8 * count), np.int64))
        raw = _read(pipe, int(ends[-1]) if count else 0)
    except EOFError:
        return None
    return [raw[begin:end].decode() for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


def _send(pipe: IO[bytes], results: TokenizedDocuments) -> None:
    for array in results:
        pipe.write(_HEADER.pack(array.size, array.itemsize))
        pipe.write(array.tobytes())
    pipe.flush()


def _send_failure(pipe: IO[bytes], error_text: DocumentError) -> None:
    text = json.dumps([error_text.index, error_text.reason]).encode()
    pipe.write(_HEADER.pack(_FAILURE, len(text)) + text)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> TokenizedDocuments:
    arrays: list[np.ndarray] = []
    while len(arrays) < len(TokenizedDocuments._fields):
        size, width = _HEADER.unpack(_read(pipe, _HEADER.size))
        if size == _FAILURE:
            index, reason = json.loads(_read(pipe, width))
            raise DocumentError(index, reason)
        kind = np.dtype(np.int32) if len(arrays) < 2 or width == 4 else id_type(0)
        arrays.append(np.frombuffer(_read(pipe, size * width), kind))
    return TokenizedDocuments(*arrays)


def _read(pipe: Any, size: int) -> bytes:
    results = pipe.read(size)
    if len(results) < size:
        raise EOFError
    return results


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
