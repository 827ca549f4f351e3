"""The walk-throughs of docs/distributed.md, from an empty bucket to a model, on servers of the loopback."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest
from lab import Lab
from stores import gcs_server, make_bucket, s3_server, use_servers

from bertjax.cli import main
from bertjax.io.store import Store

ROOT = Path(__file__).parents[2]
SKIPPED = ("ZONE=", "gcloud ", "aws ", "python3 -m venv")
TINY = ["--config.train.num_steps=4", "--config.eval.interval_steps=4"]


def commands(heading: str) -> list[str]:
    """Returns the lines of the block below a heading, continued lines joined."""
    page = (ROOT / "docs/distributed.md").read_text()
    block = re.search(rf"^## {heading}\n.*?```bash\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    assert block is not None
    return [line for line in block[1].replace("\\\n", " ").splitlines() if line]


def upload(lab: Lab, url: str) -> None:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(lab.corpus.read_bytes())
    Store(url).write("corpus/a.txt.zst", sink.getvalue().to_pybytes())


@pytest.mark.long
@pytest.mark.parametrize(
    ("heading", "server", "launcher"),
    [
        ("From an empty bucket to a model on a TPU slice", gcs_server, "tpu_pod.sh"),
        ("From an empty bucket to a model on a SLURM cluster", s3_server, "slurm.sh"),
    ],
)
def test_every_line_runs(
    heading: str,
    server: Callable[[], AbstractContextManager[dict[str, str]]],
    launcher: str,
    lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "host"))
    with server() as settings, pytest.MonkeyPatch.context() as patch:
        use_servers(settings, patch)
        text = "\n".join(commands(heading))
        (bucket,) = set(re.findall(r"(?:gs|s3)://lab-bert", text))
        make_bucket(bucket)
        upload(lab, bucket)
        ran = [each for line in commands(heading) for each in run(line, lab, launcher)]
        assert ran == ["prepare", "pretrain", "export", "python"]
        names = Store(bucket).list()
        assert any(name.startswith("text/corpora/") for name in names)
        assert any(re.fullmatch(r"runs/base/checkpoints/4/bertjax\.json", name) for name in names)


def run(line: str, lab: Lab, launcher: str) -> Iterator[str]:
    """Runs a line with a tiny model and one process; yields what ran."""
    if line.startswith(SKIPPED):
        return
    words = shlex.split(line.replace("$ZONE", "zone"))
    if words[0] == "srun":
        words = words[words.index("bertjax") :]
    if words[0].startswith("scripts/launch/"):
        assert words[0].endswith(launcher)
        shown = subprocess.run(
            [str(ROOT / words[0]), "--dry-run", *words[1:]], capture_output=True, text=True, check=True
        ).stdout
        words = ["bertjax", "pretrain", *words[words.index("--") + 1 :]]
        assert all(word.split("*")[0] in shown.replace("\\", "") for word in words[2:])
    if words[0] == "python":
        from transformers import pipeline

        assert words[2].startswith("import transformers; print(transformers.pipeline('fill-mask', 'bert-base-lab')")
        assert len(pipeline("fill-mask", "bert-base-lab")("The [MASK] is blue.")) == 5
        yield "python"
        return
    assert words[0] == "bertjax", line
    arguments = [str(lab.config) if word == "bert:base" else word for word in words[1:]]
    assert main([*arguments, *(TINY if words[1] in ("prepare", "pretrain") else [])]) == 0
    yield words[1]
