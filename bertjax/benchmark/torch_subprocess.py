"""Runs `TorchBaseline` in a process with its own threads and memory, controlled by lines of JSON.

The examples of a run are sent before it begins, and its time is measured in that process.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bertjax.benchmark.interleaved_timing import TimedRun
from bertjax.benchmark.torch_baseline import BaselineConfig, RunMode, TorchBaseline, TrialResult, fastest_trial
from bertjax.errors import UserError
from bertjax.io.stderr import note

Example = dict[str, np.ndarray]
SECONDS_TO_END = 30.0
_PACKAGES = str(Path(__file__).resolve().parents[2])
_COMMAND = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); from bertjax.benchmark.torch_subprocess import serve; serve()"
)


class TorchProcess:
    """Client of the process. Close it at the end.

    Args:
        folder: exported model and tokenizer.
        auto_class: class of `transformers`.
        examples: training examples, taken as the baseline needs them.
        config: training parameters.
    """

    def __init__(self, folder: Path, auto_class: str, examples: Iterator[Example], config: BaselineConfig):
        self._examples, self._batch_size = examples, config.batch_size
        command = [sys.executable, "-c", _COMMAND, str(folder), auto_class, json.dumps(config._asdict())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions, self.device, self.attention = self._read()
        self.mode = RunMode(False, False)

    def choose_mode(self, with_bfloat16: bool, with_compile: bool) -> list[TrialResult]:
        """Tries the modes, switches to the fastest and returns all results; raises `UserError` if none runs."""
        trials = [self._try(RunMode(False, False))]
        if with_bfloat16:
            trials.append(self._try(RunMode(True, False)))
        if with_compile:
            trials.append(self._try(RunMode(fastest_trial(trials).mode.bfloat16, True)))
        best = fastest_trial(trials)
        if best.error:
            raise UserError(f"--baseline hf: {self.versions} cannot train this model here: {best.error}")
        self._call("use", 0, list(best.mode))
        self.mode = best.mode
        return trials

    def _try(self, mode: RunMode) -> TrialResult:
        note(f"transformers: trying {mode}")
        seconds, error = self._call("trial", TorchBaseline.TRIAL_TOTAL, list(mode))
        return TrialResult(mode, seconds, error)

    def run(self, steps: int) -> TimedRun:
        """Trains `steps` steps in the process and returns their time."""
        return TimedRun(*self._call("run", steps, steps))

    def _call(self, name: str, steps: int, argument: Any) -> Any:
        """Sends a request with the examples of `steps` steps; returns the response."""
        taken = itertools.islice(self._examples, steps * self._batch_size)
        examples = [{name: np.asarray(value).tolist() for name, value in example.items()} for example in taken]
        assert self._process.stdin is not None
        try:
            print(json.dumps([name, examples, argument]), file=self._process.stdin, flush=True)
        except OSError:
            self._raise_ended()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            self._raise_ended()
        response = json.loads(line)
        if "error" in response:
            raise UserError(response["error"])
        return response["result"]

    def _raise_ended(self) -> NoReturn:
        code = self._process.wait(SECONDS_TO_END)
        raise UserError(f"--baseline hf: its process ended (exit code {code}); is there memory for both?")

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Serves requests from standard input until it ends."""
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print
    folder, auto_class, config = sys.argv[1:]

    def respond(key: str, value: Any) -> None:
        print(json.dumps({key: value}), file=responses, flush=True)

    try:
        baseline = TorchBaseline(Path(folder), auto_class, BaselineConfig(**json.loads(config)))
    except UserError as error:
        respond("error", str(error))
        return
    respond("result", [baseline.versions, baseline.device, baseline.attention])
    for line in sys.stdin:
        name, examples, argument = json.loads(line)
        baseline.feed(examples)
        if name == "run":
            respond("result", baseline.run(argument))
        elif name == "trial":
            respond("result", baseline.trial(RunMode(*argument))[1:])
        else:
            baseline.mode = RunMode(*argument)
            respond("result", None)
