"""An interrupted preparation resumes, and ends like one without interruption (reliability: a half-written cache)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from prepare_lab import digest, documents, prepare

import bertjax.data.parts as parts_module
import bertjax.data.prepare as prepare_module
from bertjax.config.data import FilterConfig
from bertjax.data.corpus import open_corpus
from bertjax.data.tokenize_documents import tokenize_documents
from bertjax.errors import UserError
from bertjax.io import atomic


class Crash(BaseException):
    """Simulates the death of the process: nothing in the program handles it."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "DOCUMENTS_PER_BATCH", 10)
    monkeypatch.setattr(parts_module, "CHARACTERS_PER_PART", 4000)


def dying_after(texts: Iterable[str], count: int) -> Iterator[str]:
    for number, text in enumerate(texts):
        if number == count:
            raise Crash
        yield text


@pytest.mark.parametrize("filters", [FilterConfig(), FilterConfig(deduplicate=True, min_chars=60)])
def test_interrupted_anywhere_it_ends_as_the_same_files(tmp_path: Path, filters: FilterConfig) -> None:
    texts = documents(120) + documents(40)
    clean = prepare(tmp_path / "clean", texts, filters)
    for count in (3, 45, 77, 100, 140, 159):
        with pytest.raises(Crash):
            prepare(tmp_path / "killed", dying_after(texts, count), filters)
    again = prepare(tmp_path / "killed", texts, filters)
    assert not again.reused and again.facts == clean.facts
    assert digest(again.folder) == digest(clean.folder)
    assert list((tmp_path / "killed").iterdir()) == [again.folder]


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, tokenized = documents(100), []

    def counted(batch: list[str], *others: object) -> object:
        tokenized.extend(batch)
        return tokenize_documents(batch, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare_module, "tokenize_documents", counted)
    with pytest.raises(Crash):
        prepare(tmp_path, dying_after(texts, 80))
    num_parts = sum(1 for _ in (next(tmp_path.glob(".*.parts"))).glob("*.npz"))
    assert num_parts >= 2
    first = len(tokenized)
    prepare(tmp_path, texts)
    assert len(texts) <= len(tokenized) < first + len(texts) - 20 * (num_parts - 1)


@pytest.mark.parametrize("operation", ["save", "write", "finish", "publish"])
def test_a_crash_while_writing_leaves_nothing_half(
    tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = documents(120)
    clean = prepare(tmp_path / "clean", texts)
    calls = []

    def crashing(*args: object, **kwargs: object) -> object:
        if operation == "publish" and not Path(str(args[0])).is_dir():  # the file of a part
            return whole(*args, **kwargs)
        calls.append(0)
        if len(calls) == (2 if operation == "save" else 1):
            raise Crash
        return whole(*args, **kwargs)

    home, name = {
        "save": (parts_module.np, "savez"),
        "write": (prepare_module, "_write"),
        "finish": (prepare_module, "_write_meta"),
        "publish": (atomic.os, "replace"),
    }[operation]
    whole = getattr(home, name)
    with monkeypatch.context() as patch:
        patch.setattr(home, name, crashing)
        with pytest.raises(Crash):
            prepare(tmp_path / "killed", texts)
    again = prepare(tmp_path / "killed", texts)
    assert digest(again.folder) == digest(clean.folder)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "unfinished", "gone"])
def test_damaged_parts_are_made_again(tmp_path: Path, damage: str) -> None:
    texts = documents(120)
    clean = prepare(tmp_path / "clean", texts)
    with pytest.raises(Crash):
        prepare(tmp_path / "killed", dying_after(texts, 110))
    victim = sorted(next((tmp_path / "killed").glob(".*.parts")).glob("*.npz"))[1]
    whole = victim.read_bytes()
    half = len(whole) // 2
    if damage == "gone":
        victim.unlink()
    elif damage == "unfinished":
        victim.rename(victim.with_suffix(".tmp"))
    else:
        flipped = whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]
        victim.write_bytes({"truncated": whole[:half], "flipped": flipped, "empty": b""}[damage])
    again = prepare(tmp_path / "killed", texts)
    assert digest(again.folder) == digest(clean.folder)


def test_two_at_the_same_time_do_not_share_their_parts(tmp_path: Path) -> None:
    texts = documents(100)

    def while_another_prepares() -> Iterator[str]:
        yield from texts[:60]
        others.append(prepare(tmp_path, texts))
        yield from texts[60:]

    others: list = []
    late = prepare(tmp_path, while_another_prepares())
    assert late.splits == others[0].splits
    assert list(tmp_path.iterdir()) == [late.folder]


def test_text_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """P30: the tokenized text is not the one that the digest identifies."""
    with pytest.raises(UserError, match="toys changed while it was being tokenized"):
        prepare(tmp_path, documents(60), confirm=lambda: "toys v2")
    assert list(tmp_path.iterdir()) == []
    assert not prepare(tmp_path, documents(60), confirm=lambda: "toys v1").reused


KILLED = """
import sys, time
from pathlib import Path
import bertjax.data.parts as parts, bertjax.data.prepare as module
module.DOCUMENTS_PER_BATCH, module.CHARACTERS_BEFORE_WORKERS, parts.CHARACTERS_PER_PART = 20, 20_000, 20_000
sys.path.insert(0, {tests!r})
from prepare_lab import documents, prepare
def slowly(texts):
    for number, text in enumerate(texts):
        if number % 20 == 0:
            time.sleep(0.01)
        yield text
if __name__ == "__main__":
    print(prepare(Path(sys.argv[1]), slowly(documents(3000)), workers=2).digest)
"""


@pytest.mark.long
@pytest.mark.parametrize("times", [5, pytest.param(20, marks=pytest.mark.weekly)])
def test_sigkills(times: int, tmp_path: Path) -> None:
    """SIGKILLs of the preparing process, each after some progress, with its workers left running."""
    program = tmp_path / "program.py"
    program.write_text(KILLED.format(tests=str(Path(__file__).parent)))
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    clean = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "clean")], env=environment, check=True, capture_output=True
    ).stdout.strip()
    cache, kills, rng, shared = tmp_path / "killed", 0, random.Random(0), set(os.listdir("/dev/shm"))
    while kills < times:
        process = subprocess.Popen([sys.executable, str(program), str(cache)], env=environment, start_new_session=True)
        before = progress(cache)
        while process.poll() is None and progress(cache) == before:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.05))
        if process.poll() is not None:  # it reached the end: begin again, so that there are as many kills
            (folder,) = cache.glob("*")
            assert digest(folder) == digest(tmp_path / "clean" / clean.decode())
            folder.rename(tmp_path / f"done-{kills}")
            continue
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    subprocess.run([sys.executable, str(program), str(cache)], env=environment, check=True)
    assert digest(cache / clean.decode()) == digest(tmp_path / "clean" / clean.decode())
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".tmp")] == [clean.decode()]
    assert set(os.listdir("/dev/shm")) <= shared
    assert json.loads((cache / clean.decode() / "meta.json").read_text())["facts"]["kept"] == 3000
    open_corpus(cache / clean.decode())


def progress(cache: Path) -> tuple[int, int]:
    """Returns finished parts, and folders that are being written."""
    return len(list(cache.glob(".*.parts/*.npz"))), len(list(cache.glob(".*.tmp/*")))
