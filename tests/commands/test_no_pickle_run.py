"""A checkpoint, a prepared corpus, a tokenizer and a Hugging Face folder are read while every pickle raises (P31)."""

from __future__ import annotations

import os
import subprocess
import sys

from lab import Finished

SCRIPT = """
import _pickle, pickle, sys

def refuse(*arguments, **named):
    raise AssertionError("something was unpickled")

class Unpickler(pickle.Unpickler):
    def __init__(self, *arguments, **named):
        refuse()

pickle.load = pickle.loads = _pickle.load = _pickle.loads = pickle._load = pickle._loads = refuse
pickle.Unpickler = _pickle.Unpickler = Unpickler
pickle._Unpickler.__init__ = refuse  # the one in Python; pandas builds upon it
from bertjax.runtime.platform import start_backend
start_backend()  # a shell keeps what XLA prints while it starts
FORBIDDEN = "pickle.find_class", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"

def watch(event, arguments):
    assert not event.startswith(FORBIDDEN), (event, arguments)

sys.addaudithook(watch)
try:
    _pickle.loads(b"N.")
    raise SystemExit("the watch is blind")
except AssertionError:
    pass

from pathlib import Path
from bertjax import load_pretrained
from bertjax.data import from_config
from bertjax.experiment.load import load_source_model
from bertjax.experiment.load import load_run
from bertjax.experiment.workdir import read_config
from bertjax.training.anomalies import read_batch_skips

workdir = Path(sys.argv[1])
cfg = read_config(workdir)
run = load_run(workdir)
prepared = from_config.prepare(cfg, say=refuse)  # all of it from the cache
batch = from_config.training_pipeline(cfg, prepared).batch(0)
model = load_pretrained(workdir / "export")
given = load_source_model(workdir / "export")
assert read_batch_skips(workdir, 8) == []
print("read", run.step, batch["input_ids"].shape[0], len(model.heads), given.tokenizer.size == run.tokenizer.size)
"""


def test_nothing_is_unpickled_while_everything_is_read(finished: Finished) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(finished.workdir)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["read", "8", "8", "3", "True"]
