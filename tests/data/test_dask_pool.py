"""Tokenizing by the workers of a dask cluster: the same bytes, and errors in one line."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest
from prepare_lab import documents, prepare

import bertjax.data.prepare as prepare_module
import bertjax.data.workers as dask_module
from bertjax.data.tokenize_documents import DocumentError
from bertjax.errors import UserError

TEXTS = documents(900)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "CHARACTERS_BEFORE_WORKERS", 1000)
    monkeypatch.setattr(prepare_module, "DOCUMENTS_PER_BATCH", 20)


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    """A cluster in threads of this process."""
    with local_cluster(2, processes=False) as cluster:
        yield cluster


def local_cluster(workers: int, **options: Any) -> distributed.LocalCluster:
    return distributed.LocalCluster(workers, threads_per_worker=1, dashboard_address=None, **options)


def test_the_corpus_is_that_of_this_process(cluster: distributed.LocalCluster, tmp_path: Path) -> None:
    alone, by_cluster = (
        prepare(tmp_path / str(number), TEXTS, dask_scheduler=scheduler)
        for number, scheduler in enumerate([None, cluster.scheduler_address])
    )
    assert alone.splits == by_cluster.splits
    names = [path.relative_to(alone.folder) for path in alone.folder.rglob("*") if path.is_file()]
    assert all((alone.folder / name).read_bytes() == (by_cluster.folder / name).read_bytes() for name in names)


def test_a_document_that_cannot_be_tokenized_is_named(
    cluster: distributed.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dask_module.tokenize_documents

    def fail(texts: list[str], *arguments: Any) -> Any:
        if TEXTS[777] in texts:
            raise DocumentError(texts.index(TEXTS[777]), "too strange")
        return real(texts, *arguments)

    monkeypatch.setattr(dask_module, "tokenize_documents", fail)
    with pytest.raises(UserError, match=r"document 778 of source toys, which begins .* be tokenized: too strange"):
        prepare(tmp_path, TEXTS, dask_scheduler=cluster.scheduler_address)


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_module, "_CONNECT_SECONDS", 1)
    expected = r"data\.dask_scheduler=tcp://127\.0\.0\.1:9: the dask cluster does not answer within 1 s"
    with pytest.raises(UserError, match=expected):
        prepare(tmp_path, TEXTS, dask_scheduler="tcp://127.0.0.1:9")


def test_a_cluster_without_workers_is_refused(tmp_path: Path) -> None:
    with local_cluster(1, processes=False) as cluster:
        cluster.scale(0)
        while cluster.scheduler_info["workers"]:
            time.sleep(0.05)
        with pytest.raises(UserError, match=r"the dask cluster has no workers; start some"):
            prepare(tmp_path, TEXTS, dask_scheduler=cluster.scheduler_address)


def test_other_versions_are_refused(
    cluster: distributed.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match=r"'bertjax': '0'}; install the same versions"):
        dask_module._install({}, "x", {"bertjax": "0"})
    monkeypatch.setattr(dask_module, "_versions", iter([{"bertjax": "1"}, {"bertjax": "2"}, {"bertjax": "2"}]).__next__)
    with pytest.raises(UserError, match=r"the dask cluster cannot be used: .*install the same versions"):
        prepare(tmp_path, documents(500, seed=3), dask_scheduler=cluster.scheduler_address)


@pytest.mark.long
@pytest.mark.parametrize("count", [2, *(pytest.param(count, marks=pytest.mark.weekly) for count in (1, 4))])
def test_processes_one_of_which_is_killed(count: int, tmp_path: Path) -> None:
    """Its batches are repeated by the others, or by the process that dask starts instead."""
    with local_cluster(count, processes=True, scheduler_port=0) as cluster:
        worker = distributed.Client(cluster, set_as_default=False).run(os.getpid)

        def texts() -> Iterator[str]:
            for number, text in enumerate(TEXTS):
                if number == 600:
                    os.kill(next(iter(worker.values())), signal.SIGKILL)
                yield text

        by_cluster = prepare(tmp_path / "cluster", texts(), dask_scheduler=cluster.scheduler_address)
    assert by_cluster.splits == prepare(tmp_path / "alone", TEXTS).splits


@pytest.mark.long
def test_a_lost_cluster_is_named_and_the_same_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bertjax.data.parts as parts_module

    monkeypatch.setattr(parts_module, "CHARACTERS_PER_PART", 20_000)
    cluster = local_cluster(1, processes=True)

    def texts() -> Iterator[str]:
        for number, text in enumerate(TEXTS):
            if number == 700:
                cluster.close()
            yield text

    with pytest.raises(UserError, match=r"tokenizing documents .* failed: the dask cluster .* failed"):
        prepare(tmp_path / "cache", texts(), dask_scheduler=cluster.scheduler_address)
    assert list((tmp_path / "cache").glob(".*.parts/*.npz"))
    with local_cluster(1, processes=False) as other:
        resumed = prepare(tmp_path / "cache", TEXTS, dask_scheduler=other.scheduler_address)
    assert resumed.splits == prepare(tmp_path / "alone", TEXTS).splits
