"""Killed preparations and long readings leave nothing: no files, threads or memory (P34, section 9 of the promises)."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prepare_lab import documents, prepare, tokenizer

from bertjax.data.corpus import open_corpus
from bertjax.data.formats import make_format
from bertjax.data.pipeline import MixtureSource, Pipeline, Prefetcher
from bertjax.data.workers import WorkerPool

PREPARING = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import bertjax.data.prepare as prepare_module
from prepare_lab import documents, prepare, tokenizer
prepare_module.DOCUMENTS_PER_BATCH, prepare_module.CHARACTERS_BEFORE_WORKERS = 20, 100
tokenizer()

def endless():
    texts = documents(2000)
    while True:
        yield from texts
        print("on", flush=True)

prepare(Path(sys.argv[2]), endless(), workers=2)
"""


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def _is_of_running_process(name: str) -> bool:
    """Returns whether a semaphore belongs to a process that runs: to other tests, which run at the same time."""
    owner = re.match(r"sem\.loky-(\d+)-", name)
    return owner is not None and Path("/proc", owner[1]).exists()


def kill_preparations(times: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    shared = set(os.listdir("/dev/shm"))
    for _ in range(times):
        command = [sys.executable, "-c", PREPARING, str(Path(__file__).parent), str(folder / "cache")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "on\n"  # there is progress to lose
        assert any(temporary.iterdir())
        process.kill()
        process.wait()
        process.stdout.close()
        wait_until(lambda: not any(temporary.iterdir()))  # the workers have ended, too
    assert {name for name in os.listdir("/dev/shm") if not _is_of_running_process(name)} <= shared
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert prepare(folder / "cache", documents(60), workers=2).splits["train"].documents > 30
    assert not any(temporary.iterdir())


def test_a_killed_preparation_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_preparations(2, tmp_path, monkeypatch)


@pytest.mark.weekly
def test_twenty_killed_preparations_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P34."""
    kill_preparations(20, tmp_path, monkeypatch)


# -- long readings -----------------------------------------------------------------------------------------------------


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")
@pytest.mark.long
@pytest.mark.parametrize("batches", [6_000, pytest.param(20_000, marks=pytest.mark.weekly)])
def test_reading_on_and_on_takes_no_more_files_nor_memory(batches: int, tmp_path: Path) -> None:
    """Section 9: through hundreds of epochs, each planned in the background."""
    corpus = open_corpus(prepare(tmp_path, documents(400)).folder)["train"].open()
    form = make_format(
        "nsp_pairs", corpus, seq_len=32, seed=0, special_ids=tokenizer(), packing="best_fit", dupe_factor=3
    )
    pipeline = Pipeline([MixtureSource("toys", form, None, corpus)], batch_size=16, seed=0, vocab_size=tokenizer().size)
    measured, others = [], threading.active_count()
    warm = batches // 3
    with Prefetcher(pipeline.batch, 0, batches) as ahead:
        for cursor, _ in ahead:
            if cursor in (warm, batches - 1):
                gc.collect()
                measured.append((files_open(), threading.active_count() <= others + 5, resident()))
    (files, quiet, before), (files_later, quiet_later, after) = measured
    assert pipeline.num_used(16 * batches)["toys"] > batches // 400 * pipeline.sequences_per_epoch["toys"]
    assert files == files_later and quiet and quiet_later
    assert after - before < 1e6 * (batches - warm) / 1000 + 2e6  # 1 MB per thousand batches, and a margin


@pytest.mark.long
def test_readers_and_workers_that_come_and_go_leave_no_files_open(tmp_path: Path) -> None:
    """Section 9: every resume, rollback and evaluation starts a reader."""
    folder = prepare(tmp_path, documents(200)).folder

    def once() -> None:
        corpus = open_corpus(folder)["train"].open()
        form = make_format("block", corpus, seq_len=32, seed=0, special_ids=tokenizer())
        pipeline = Pipeline(
            [MixtureSource("toys", form, None, corpus)], batch_size=16, seed=0, vocab_size=tokenizer().size
        )
        with Prefetcher(pipeline.batch, 0, 10**6) as ahead:
            next(ahead)

    def start_workers() -> None:
        with WorkerPool(tokenizer(), 1) as workers:
            next(workers.map([["the cat sees a dog."]]))

    for act, times in ((once, 30), (start_workers, 3)):
        act()
        gc.collect()
        before = files_open(), threading.active_count()
        for _ in range(times):
            act()
        gc.collect()
        wait_until(lambda: threading.active_count() <= before[1])  # noqa: B023
        assert files_open() <= before[0]
