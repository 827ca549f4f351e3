"""Random bytes in the small files of a work directory: read, skipped or explained in one line (P28, section 7)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertjax.config.defaults import base_config
from bertjax.config.overrides import flatten, to_json
from bertjax.data.corpus import find_damage
from bertjax.data.tokenizer_io import load_tokenizer
from bertjax.errors import UserError
from bertjax.experiment.load import stored_teacher
from bertjax.experiment.workdir import changed_keys, metrics_at, read_config, write_config
from bertjax.io.jsonl import JsonlLog
from bertjax.training.anomalies import read_batch_skips

LINES = [
    b'{"step": 3, "eval/loss": 1.5}\n',
    b'{"step": 4, "eval/loss": null}\n',
    b'{"step": 3, "eval/l',
    b"[3]\n",
    b"7\n",
]
BOMBS = [
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"9" * 5_000,
    b'"\\ud800"',
    b"\xff\xfe",
    b"null",
    b"NaN",
    b"{}",
    b"",
    b"\0" * 40,
]
BYTES = st.lists(st.one_of(st.sampled_from(LINES + BOMBS), st.binary(max_size=12)), max_size=6).map(b"".join)
QUICK = settings(max_examples=50, deadline=timedelta(seconds=10))


def explained(name: str, raw: bytes, read: Callable[[Path], Any]) -> Any:
    """Returns what `read` makes of a folder with such a file, or None if it raises an explained error."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(raw)
        try:
            return read(folder)
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
            return None


@QUICK
@given(BYTES)
@example(BOMBS[0])
@example(BOMBS[1])
def test_config_json(raw: bytes) -> None:
    result = explained("config.json", raw, read_config)
    assert result is None or flatten(result).keys() == flatten(base_config()).keys()


@pytest.mark.parametrize("value", [None, -1, 3, 0.5, True, "57", [], ["a"], {"a": 1}, [[1]], "\ud800"], ids=str)
def test_any_value_of_a_key_is_of_its_type_or_explained(value: Any) -> None:
    """Values in a config.json that somebody edited."""
    whole = json.loads(to_json(base_config()))
    for key in list(flatten(base_config()))[::31]:  # a prime: every type occurs
        *group, leaf = key.split(".")
        changed = json.loads(json.dumps(whole))
        (changed[group[0]] if group else changed)[leaf] = value
        explained("config.json", json.dumps(changed).encode(), read_config)


@QUICK
@given(BYTES)
@example(LINES[0] + LINES[2])
@example(BOMBS[0])
def test_damaged_metrics(raw: bytes) -> None:
    """Metrics of a process that was killed in the middle of a line, and of a disk that lost some lines."""
    result = explained("metrics.jsonl", raw, lambda folder: metrics_at(folder, 3))
    assert result is not None and all(key.startswith("eval/") for key in result)
    if raw.startswith(LINES[0]):
        assert result["eval/loss"] == 1.5

    def goes_on(folder: Path) -> list[str]:
        writer = JsonlLog(folder / "metrics.jsonl", 3)
        writer.write(4, {"train/loss": 2.0})
        writer.close()
        return (folder / "metrics.jsonl").read_text().splitlines()

    lines = explained("metrics.jsonl", raw, goes_on)
    assert lines is not None and all("step" in json.loads(line) for line in lines)


@QUICK
@given(BYTES)
@example(BOMBS[0])
def test_the_journal_and_the_teacher(raw: bytes) -> None:
    explained("anomalies/batch_skips.json", raw, lambda folder: read_batch_skips(folder, 9))
    explained("teacher.json", raw, stored_teacher)


@QUICK
@example(b"", "spiece.model")
@example(b"\n".join([b"[" * 100_000] * 2), "vocab.txt")
@given(BYTES, st.sampled_from(["tokenizer.json", "vocab.txt", "bertjax_tokenizer.json", "spiece.model"]))
def test_tokenizers(raw: bytes, name: str) -> None:
    explained(name, raw, load_tokenizer)


@pytest.mark.parametrize("raw", BOMBS, ids=range(len(BOMBS)))
def test_the_metadata_of_a_prepared_corpus(raw: bytes) -> None:
    """The content is not taken for a corpus: it does not name its splits."""
    assert explained("meta.json", raw, find_damage)


def test_a_folder_claimed_again_is_whole(tmp_path: Path) -> None:
    """An unreadable config.json is not accepted as one that allows a change."""
    write_config(tmp_path, base_config())
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    for raw in BOMBS:
        (tmp_path / "config.json").write_bytes(raw)
        if raw == b"{}":
            continue  # every key has its default
        with pytest.raises(UserError, match=r"config\.json"):
            changed_keys(tmp_path, base_config())
