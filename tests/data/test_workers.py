"""Tokenizing processes: the corpus is the same; errors name the worker's documents, and nothing remains (P33, P34)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from prepare_lab import digest, documents, prepare, tokenizer

import bertjax.data.prepare as prepare_module
import bertjax.data.workers as workers_module
from bertjax.data.sentence_splitter import split_sentences
from bertjax.data.tokenize_documents import DocumentError, tokenize_documents
from bertjax.data.workers import WorkerPool
from bertjax.errors import UserError


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "DOCUMENTS_PER_BATCH", 40)
    monkeypatch.setattr(prepare_module, "CHARACTERS_BEFORE_WORKERS", 5000)


def test_workers_change_nothing(tmp_path: Path) -> None:
    texts = [*documents(400), "Ünï côde\u2028图书。", "x" * 5000]
    alone, helped = prepare(tmp_path / "a", texts), prepare(tmp_path / "b", texts, workers=2)
    assert digest(helped.folder) == digest(alone.folder)


def test_batches_come_back_in_order() -> None:
    lists = [documents(count, seed=count) for count in (1, 30, 2, 9, 1, 1, 20)]
    with WorkerPool(tokenizer(), 3) as workers:
        for texts, encoded in zip(lists, workers.map(lists), strict=True):
            for ours, theirs in zip(tokenize_documents(texts, tokenizer(), split_sentences), encoded, strict=True):
                assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


def test_a_killed_worker_is_named_with_its_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P34: within 30 s and in one line; finished parts stay, and the next run starts."""
    texts, started = documents(2000), []
    whole = workers_module._start

    def noted(*args: object) -> subprocess.Popen:
        started.append(whole(*args))  # type: ignore[arg-type]
        return started[-1]

    def killing() -> Iterator[str]:
        for number, text in enumerate(texts):
            if number == 1200:
                for process in started:
                    process.kill()
            yield text

    monkeypatch.setattr(workers_module, "_start", noted)
    shared = set(os.listdir("/dev/shm"))
    began = time.monotonic()
    with pytest.raises(
        UserError, match=r"documents [\d,]+ to [\d,]+ of toys failed: process \d+ was killed by SIGKILL"
    ):
        prepare(tmp_path, killing(), workers=2)
    assert time.monotonic() - began < 30
    assert all(process.poll() is not None for process in started)
    assert set(os.listdir("/dev/shm")) <= shared
    assert not [thread for thread in threading.enumerate() if "feeds-a-worker" in thread.name]
    monkeypatch.setattr(workers_module, "_start", whole)
    assert prepare(tmp_path, texts, workers=2).splits["train"].documents > 1500


class Picky:
    """A tokenizer that fails on one document; `save` writes one that does not, so the failure must happen here."""

    unk_id, lowercase = -1, False
    size, digest = 120, "picky"

    def encode_flat(self, texts: list[str]) -> object:
        if any("number 33" in text for text in texts):
            raise RuntimeError("an error\nof the library")
        return tokenizer().encode_flat(texts)


def test_a_document_that_cannot_be_tokenized_is_named(tmp_path: Path) -> None:
    texts = [f"Some text, number {number}." for number in range(60)]
    with pytest.raises(UserError, match="document 34 of source toys, which begins 'Some text, number 33") as caught:
        prepare(tmp_path, texts, tokenizer=Picky())
    assert "RuntimeError: an error of the library" in str(caught.value) and "\n" not in str(caught.value)


def test_a_worker_that_raises_names_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error crosses the pipe, and the process continues."""
    broken = "from bertjax.data import sentence_splitter, tokenize_documents, workers\n" + (
        "def split(text):\n    assert 'bad' not in text, 'no\\nwords'\n    return [text]\n"
        "sentence_splitter.split_sentences = split\nworkers.serve()"
    )
    command = workers_module._COMMAND.replace("from bertjax.data.workers import serve; serve()", "")
    monkeypatch.setattr(workers_module, "_COMMAND", command + "\n" + broken)
    with WorkerPool(tokenizer(), 1) as workers:
        answers = workers.map([["good"], ["good", "bad"]])
        assert next(answers).document_sentences.tolist() == [1]
        with pytest.raises(DocumentError) as caught:
            next(answers)
        assert caught.value.index == 1 and caught.value.reason == "AssertionError: no words"
        assert next(workers.map([["good", "good"]])).document_sentences.tolist() == [1, 1]


def test_workers_end_with_their_parent() -> None:
    """P34: the parent is killed; a worker reads the end of its input and exits."""
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from prepare_lab import tokenizer; from bertjax.data.workers import WorkerPool\n"
        "workers = WorkerPool(tokenizer(), 2); print(*workers.process_ids, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    numbers = [int(number) for number in parent.stdout.readline().split()]
    assert len(numbers) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while any(is_running(number) for number in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_after_jax(times: int) -> None:
    jax.jit(lambda x: x + 1)(np.float32(0)).block_until_ready()
    for _ in range(times):
        began = time.monotonic()
        with WorkerPool(tokenizer(), 1) as workers:
            assert len(next(workers.map([["the cat sees a dog."]])).ids)
        assert time.monotonic() - began < 10


def test_workers_start_after_jax_has_threads(recwarn: pytest.WarningsRecorder) -> None:
    """P33: `exec`, never a fork of a process with threads (Python and jax would warn)."""
    start_after_jax(2)
    assert not [warning for warning in recwarn if "fork" in str(warning.message)]


@pytest.mark.weekly
def test_fifty_starts_after_jax() -> None:
    start_after_jax(50)
