"""A prepared corpus whose ids exceed the model's vocabulary, from the command line (P26)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from corpus_folders import update_digests
from lab import Lab

from bertjax.data.corpus import open_corpus


def overwrite(folder: Path, value: int) -> None:
    """Overwrites every stored id of the training split in the file; sizes and boundaries stay."""
    corpus = open_corpus(folder)["train"].open()
    (ids,) = corpus.read(np.zeros(1, int), np.array([corpus.num_tokens]))
    old, new = ids.tobytes(), np.full_like(ids, value).tobytes()
    (arrow,) = (folder / "train").glob("*.arrow")
    whole = arrow.read_bytes()
    assert whole.count(old) == 1
    arrow.write_bytes(whole.replace(old, new))


@pytest.mark.parametrize("value", [120, 65535])  # V, and -1 as two bytes
def test_a_run_on_a_damaged_corpus_ends_with_the_document(
    lab: Lab, tmp_path: Path, value: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = f"--config.data.cache_dir={tmp_path / 'cache'}"
    assert lab.run("prepare", cache) == 0
    (folder,) = (tmp_path / "cache" / "corpora").iterdir()
    size = len(open_corpus(folder)["train"].counts)
    assert size <= 120
    overwrite(folder, value)
    assert lab.run("pretrain", "--workdir", tmp_path / "run", cache) == 2
    assert f"the prepared corpus {folder} is damaged (train/data-00000.arrow has other" in capsys.readouterr().err
    update_digests(folder)
    assert lab.run("pretrain", "--workdir", tmp_path / "run", cache) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert f"contains token id {value} (example " in output and f"the vocabulary has {size} tokens" in output
    assert f"token 1 of document 1 of {folder}/train; prepare the corpus" in output
    assert not list((tmp_path / "run").glob("checkpoints/[0-9]*"))
