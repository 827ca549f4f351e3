"""The peer in a process of its own, whose threads and memory are in nobody's way, asked by lines of JSON.

What makes a turn's batches is sent before the turn begins, and its time is taken over there.
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

Example = dict[str, np.ndarray]
SECONDS_TO_END = 30.0
_PACKAGES = str(Path(__file__).resolve().parents[2])
_COMMAND = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); from bertjax.benchmark.torch_subprocess import serve; serve()"
)


class TorchProcess:
    """`TorchBaseline`, elsewhere. Close it at the end."""

    def __init__(self, folder: Path, auto_class: str, examples: Iterator[Example], recipe: BaselineConfig):
        self._examples, self._rows = examples, recipe.rows
        command = [sys.executable, "-c", _COMMAND, str(folder), auto_class, json.dumps(recipe._asdict())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions, self.device, self.attention = self._answer()
        self.setting = RunMode(False, False)

    def choose(self, with_compile: bool) -> list[TrialResult]:
        """Tries the ways to run, keeps the fastest, and returns what was found."""
        trials = [self._try(RunMode(False, False)), self._try(RunMode(True, False))]
        if with_compile:
            trials.append(self._try(RunMode(fastest_trial(trials).setting.bfloat16, True)))
        best = fastest_trial(trials)
        if best.fault:
            raise UserError(f"--baseline hf: {self.versions} cannot train this model here: {best.fault}")
        self._ask("use", 0, list(best.setting))
        self.setting = best.setting
        return trials

    def _try(self, setting: RunMode) -> TrialResult:
        seconds, fault = self._ask("trial", TorchBaseline.STEPS_OF_A_TRIAL, list(setting))
        return TrialResult(setting, seconds, fault)

    def run(self, steps: int) -> TimedRun:
        return TimedRun(*self._ask("run", steps, steps))

    def _ask(self, what: str, steps: int, argument: Any) -> Any:
        """The answer to a call of `TorchBaseline`, given what `steps` steps need."""
        taken = itertools.islice(self._examples, steps * self._rows)
        examples = [{name: np.asarray(value).tolist() for name, value in example.items()} for example in taken]
        assert self._process.stdin is not None
        try:
            print(json.dumps([what, examples, argument]), file=self._process.stdin, flush=True)
        except OSError:
            self._ended()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            self._ended()
        answer = json.loads(line)
        if "fault" in answer:
            raise UserError(answer["fault"])
        return answer["is"]

    def _ended(self) -> NoReturn:
        code = self._process.wait(SECONDS_TO_END)
        raise UserError(f"--baseline hf: the peer's process ended (exit code {code}); is there memory for both?")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """The other end: answers until nobody asks."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print
    folder, auto_class, recipe = sys.argv[1:]

    def answer(kind: str, value: Any) -> None:
        print(json.dumps({kind: value}), file=answers, flush=True)

    try:
        peer = TorchBaseline(Path(folder), auto_class, BaselineConfig(**json.loads(recipe)))
    except UserError as error:
        answer("fault", str(error))
        return
    answer("is", [peer.versions, peer.device, peer.attention])
    for line in sys.stdin:
        what, examples, argument = json.loads(line)
        peer.feed(examples)
        if what == "run":
            answer("is", peer.run(argument))
        elif what == "trial":
            answer("is", peer.trial(RunMode(*argument))[1:])
        else:
            peer.use(RunMode(*argument))
            answer("is", None)
