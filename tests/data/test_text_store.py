"""`data.cache_dir` in an object store: text is prepared once, and hosts download the shards that they read."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict
from prepare_lab import documents

from bertjax.config.overrides import apply_overrides, load_config
from bertjax.data import from_config, text_store
from bertjax.data.from_config import Prepared
from bertjax.errors import UserError
from bertjax.io.store import Store
from bertjax.types import Batch


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"memory://bucket/{tmp_path.name}")
    yield store
    store.remove(store.list())


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(documents(300)))
    return path


def config(text: Path, cache_dir: object, **changes: Any) -> ConfigDict:
    settings = {
        "data.sources": f"text:{text}",
        "data.cache_dir": cache_dir,
        "data.vocab_size": 120,
        "data.eval_fraction": 0.1,
        "data.example_format": "block",
        "data.seq_len": 24,
        "data.shard_tokens": 500,
        "data.shuffle_shards": 3,
        "train.batch_size": 16,
        "train.num_steps": 100,
    }
    arguments = [f"--config.{key}={value}" for key, value in (settings | changes).items()]
    return apply_overrides(load_config("bert:smoke"), arguments)


def new_host(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def batches(cfg: ConfigDict, prepared: Prepared) -> list[Batch]:
    pipeline = from_config.training_pipeline(cfg, prepared)
    return [pipeline.batch(cursor) for cursor in range(0, 60, 3)]


def assert_equal(one: list[Batch], other: list[Batch]) -> None:
    assert all(np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def local_shards(host: Path) -> set[str]:
    return {path.name for path in host.glob("bertjax/stores/*/corpora/*/train/*.arrow")}


def test_another_host_downloads_what_it_reads(
    store: Store, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = config(text, tmp_path / "disk")
    expected = batches(on_disk, from_config.prepare(on_disk))
    cfg = config(text, store.url)
    new_host(monkeypatch, tmp_path / "first")
    prepared = from_config.prepare(cfg)
    from_config.count_sequences(cfg, prepared)
    assert_equal(batches(cfg, prepared), expected)

    lines: list[str] = []
    host = new_host(monkeypatch, tmp_path / "second")
    prepared = from_config.prepare(cfg, lines.append)
    assert not lines and all(corpus.reused for corpus in prepared.training.values())  # neither trained nor tokenized
    num_shards = len(prepared_shards(prepared))
    assert num_shards > 6 and not local_shards(host)
    pipeline = from_config.training_pipeline(cfg, prepared)
    for cursor in range(3):
        pipeline.batch(cursor, slice(0, 4))
    assert 1 <= len(local_shards(host)) <= 2  # a quarter of the rows, of three shards that are read together
    assert_equal(batches(cfg, prepared), expected)


def prepared_shards(prepared: Prepared) -> list[str]:
    (corpus,) = prepared.training.values()
    return [shard[0] for shard in json.loads((corpus.folder / "meta.json").read_text())["shards"]["train"]]


def test_old_shards_are_deleted_and_downloaded_again(
    store: Store, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(text, store.url)
    new_host(monkeypatch, tmp_path / "first")
    expected = batches(cfg, from_config.prepare(cfg))
    monkeypatch.setattr(text_store, "MAX_LOCAL_SHARDS", 2)
    host = new_host(monkeypatch, tmp_path / "second")
    assert_equal(batches(cfg, from_config.prepare(cfg)), expected)
    assert len(local_shards(host)) <= 4  # a thread may be opening the next one
    prepared = from_config.prepare(cfg)
    for path in host.glob("bertjax/stores/*/corpora/*/train/*.arrow"):
        path.unlink()
    assert_equal(batches(cfg, prepared), expected)


def test_a_flipped_bit_in_the_store_is_noticed(
    store: Store, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(text, store.url)
    new_host(monkeypatch, tmp_path / "first")
    from_config.prepare(cfg)
    for name in store.list():
        if name.endswith(".arrow") and "/train/" in name:
            raw = bytearray(store.read(name))
            raw[len(raw) // 2] ^= 1
            store.write(name, bytes(raw))
    new_host(monkeypatch, tmp_path / "second")
    prepared = from_config.prepare(cfg)
    with pytest.raises(UserError, match=r"is damaged \(train/data-\d+\.arrow has other bytes than were written\)"):
        batches(cfg, prepared)


def test_a_corpus_without_its_last_file_is_made_again(
    store: Store, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was killed while it uploaded."""
    cfg = config(text, store.url)
    new_host(monkeypatch, tmp_path / "first")
    expected = batches(cfg, from_config.prepare(cfg))
    store.remove([name for name in store.list() if name.endswith("meta.json")])
    new_host(monkeypatch, tmp_path / "second")
    lines: list[str] = []
    assert_equal(batches(cfg, from_config.prepare(cfg, lines.append)), expected)
    assert any(line.startswith("tokenized") for line in lines)
    assert any(name.endswith("meta.json") for name in store.list())


@pytest.mark.parametrize("meta", ["", "[]", '{"shards": 1}', '{"shards": {"train": [1, 2]}}'])
def test_a_description_of_a_stranger_is_refused(store: Store, meta: str, tmp_path: Path) -> None:
    store.write("meta.json", meta.encode())
    with pytest.raises(UserError, match=rf"{store.url} cannot be read: meta.json does not describe a corpus"):
        text_store.fetch_folder(store.url, tmp_path / "corpus", "meta.json")


def test_a_shard_is_a_file_of_its_corpus(store: Store, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    downloads = text_store.ShardDownloads(tmp_path / "corpus", store.url)
    with pytest.raises(OSError, match="is not that of a file below it"):
        downloads.fetch("../thesis.txt")  # would be deleted when others are read
    assert (tmp_path / "thesis.txt").exists()


def test_a_missing_object_is_named(store: Store, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(text, store.url)
    new_host(monkeypatch, tmp_path / "first")
    from_config.prepare(cfg)
    store.remove([name for name in store.list() if "/train/" in name and name.endswith(".arrow")])
    new_host(monkeypatch, tmp_path / "second")
    prepared = from_config.prepare(cfg)
    with pytest.raises(UserError, match=rf"{store.url}/.*train/data-\d+\.arrow.* cannot be read"):
        batches(cfg, prepared)


@pytest.mark.parametrize("module", ["tokenizer_from_config.train_from_config", "from_config.load_or_train_tokenizer"])
def test_text_that_changes_with_its_tokenizer_in_use_is_refused(
    module: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokenizer is not cached; one that was made before cannot be that of a run, which would never resume."""
    name = f"bertjax.data.{module}"
    train = pkgutil.resolve_name(name)

    def changes(*arguments: Any) -> Any:
        tokenizer = train(*arguments)
        text.write_text(text.read_text() + "\n\nlate words")
        return tokenizer

    cfg = config(text, tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(name, changes)
        with pytest.raises(UserError, match=r"^the text of data\.sources changed while its tokenizer .* start again$"):
            from_config.prepare(cfg)
    assert (tmp_path / "cache/tokenizers").exists() == module.startswith("from")
    first, again = (from_config.prepare(cfg).digests for _ in range(2))
    assert first == again
