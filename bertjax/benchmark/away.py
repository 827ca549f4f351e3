"""The peer in a process of its own: in one process with jax, each side was seen to take half as long again.

What makes a turn's batches is sent before the turn begins, and its time is taken over there.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.benchmark.peer import Peer, Recipe, Setting, Trial, fastest
from bertjax.benchmark.turns import Turn
from bertjax.types import UserError

Example = dict[str, np.ndarray]
SECONDS_TO_END = 30.0


class PeerAway:
    """`Peer`, elsewhere. Close it at the end."""

    def __init__(self, folder: Path, auto_class: str, examples: Iterator[Example], recipe: Recipe):
        self._examples, self._rows = examples, recipe.rows
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")  # jax has threads: a fork of it may hang
        self._process = context.Process(target=_serve, args=(there, folder, auto_class, recipe), daemon=True)
        self._process.start()
        there.close()
        self._connection = here
        self.versions, self.device, self.attention = self._answer()
        self.setting = Setting(False, False)

    def choose(self, with_compile: bool) -> list[Trial]:
        """Tries the ways to run, keeps the fastest, and returns what was found."""
        trials = [self._try(Setting(False, False)), self._try(Setting(True, False))]
        if with_compile:
            trials.append(self._try(Setting(fastest(trials).bfloat16, True)))
        best = min(trials, key=lambda trial: trial.seconds)
        if best.fault:
            raise UserError(f"--against hf: {self.versions} cannot train this model here: {best.fault}")
        self.setting = self._ask("use", 0, best.setting)
        return trials

    def _try(self, setting: Setting) -> Trial:
        return self._ask("trial", Peer.STEPS_OF_A_TRIAL, setting)

    def turn(self, steps: int) -> Turn:
        return self._ask("turn", steps, steps)

    def _ask(self, what: str, steps: int, *arguments: Any) -> Any:
        """The answer to a call of `Peer`, given what `steps` steps need."""
        self._connection.send((what, list(itertools.islice(self._examples, steps * self._rows)), arguments))
        return self._answer()

    def _answer(self) -> Any:
        try:
            answer = self._connection.recv()
        except EOFError:
            self._process.join(SECONDS_TO_END)
            code = self._process.exitcode
            raise UserError(
                f"--against hf: the peer's process ended (exit code {code}); is there memory for both?"
            ) from None
        if isinstance(answer, UserError):
            raise answer
        return answer

    def close(self) -> None:
        self._connection.close()
        self._process.join(SECONDS_TO_END)
        self._process.kill()


def _serve(connection: Connection, folder: Path, auto_class: str, recipe: Recipe) -> None:
    """The other end: answers until nobody asks."""
    try:
        peer = Peer(folder, auto_class, recipe)
        connection.send((peer.versions, peer.device, peer.attention))
        while True:
            what, examples, arguments = connection.recv()
            peer.feed(examples)
            connection.send(getattr(peer, what)(*arguments))
    except UserError as error:
        connection.send(error)
    except (EOFError, KeyboardInterrupt):
        return
