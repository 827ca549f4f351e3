"""This process among others: what the first one tells them, what all do at the same step, who has died.

Everything here goes through the key-value store of jax's coordination service, which lives in the first process. It
needs no device, so it works while the devices wait for a process that is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bertjax.config.distributed import DistributedConfig
from bertjax.errors import UserError
from bertjax.runtime.cluster import ProcessInfo, find_process_info
from bertjax.runtime.heartbeat import EXIT_PEER_LOST, Heartbeat, exit_immediately

T = TypeVar("T")


class ProcessGroup:
    """The processes that train one model, and which of them this is; this base class is a group of one process."""

    index, count = 0, 1

    def run_on_first(self, what: str, make: Callable[[], T]) -> T:
        """Returns the result of `make` on the first process, to all processes.

        All processes must call this in the same order; the others do not call `make`.

        Args:
            what: Name of the result, for the message after a timeout.
            make: Function without arguments. With several processes its result passes through JSON.

        Raises:
            UserError: The result did not arrive within `distributed.wait_timeout`.
        """
        return make()

    def agree(self, stop: int, save: bool) -> tuple[int, bool]:
        """Returns what all processes do after this step; to be called once per step.

        Args:
            stop: Number of the signal that asks this process to stop, 0 for none.
            save: Whether this process wants to save a checkpoint; only the first process is heard.

        Returns:
            (stop, save), the same on all processes at the same step, a little later than requested.
        """
        return stop, save

    @contextlib.contextmanager
    def abort_on_error(self) -> Iterator[None]:
        """Ends all processes, with one message and one exit status, when the body raises an error in any of them."""
        yield


SINGLE_PROCESS = ProcessGroup()


class MultiProcessGroup(ProcessGroup):
    """One of several processes, from the moment that they have found each other."""

    def __init__(self, client: Any, index: int, count: int, config: DistributedConfig):
        self.index, self.count, self.config = index, count, config
        self._client, self._calls = client, 0
        self._pulse = Heartbeat(client, index, count, config.peer_timeout)

    def run_on_first(self, what: str, make: Callable[[], T]) -> T:
        self._calls += 1
        key = f"bertjax/first/{self._calls}"
        if self.index == 0:
            told = json.dumps(make())
            self._client.key_value_set(key, told)
        else:
            try:
                told = self._client.blocking_key_value_get(key, 1000 * self.config.wait_timeout)
            except Exception as error:
                raise self._waited(what, error) from error
        return json.loads(told)

    def barrier(self, what: str, seconds: int) -> None:
        """Returns when all processes are here; raises `UserError` when they are not in time."""
        try:
            self._client.wait_at_barrier(f"bertjax/{what}", 1000 * seconds)
        except Exception as error:
            raise self._waited(what, error) from error

    def agree(self, stop: int, save: bool) -> tuple[int, bool]:
        return self._pulse.agree(stop, save and self.index == 0)

    @contextlib.contextmanager
    def abort_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if hasattr(error, "exit_code"):  # all processes raise it: they were asked to stop
                raise
            self._fail(error)

    def close(self) -> None:
        """Waits until all are done, so that none of them takes another's end for a death."""
        with self.abort_on_error():
            self.barrier("the end of all", self.config.wait_timeout)
        self._pulse.stop()

    def _waited(self, what: str, error: Exception) -> Exception:
        if "DEADLINE_EXCEEDED" not in str(error):
            return error
        return UserError(
            f"process {self.index} waited {self.config.wait_timeout} s for {what} (distributed.wait_timeout)"
        )

    def _fail(self, error: BaseException) -> None:
        """Tells the others and ends this process; does not return."""
        if isinstance(error, UserError):
            message, code = str(error), 2
        elif isinstance(error, KeyboardInterrupt):
            message, code = "interrupted", 130
        else:
            if is_network_error(error):
                self._pulse.await_peer_failure()
                code = EXIT_PEER_LOST
            else:
                traceback.print_exception(error)
                code = 1
            message = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self._pulse.fail(message, code)


_OF_THE_NETWORK = ("Gloo", "NCCL", "RCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "Connection ", "barrier")


def is_network_error(error: BaseException) -> bool:
    """Whether it may come of another process that is gone: collectives and barriers fail in many types and words."""
    chain: BaseException | None = error
    while chain is not None:
        if any(word in str(chain) for word in _OF_THE_NETWORK):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


@contextlib.contextmanager
def join_processes(config: DistributedConfig) -> Iterator[ProcessGroup]:
    """Joins the processes of this run, if there are several; nothing is started for one that is alone.

    All but the first print nothing. To be entered before jax has looked for its devices.
    """
    place = find_process_info(config)
    if place is None:
        yield SINGLE_PROCESS
        return
    processes = _join(place, config)
    quiet = contextlib.nullcontext() if processes.index == 0 else contextlib.redirect_stdout(_nowhere())
    with quiet:
        try:
            with processes.abort_on_error():
                yield processes
        finally:
            processes.close()


def _nowhere() -> Any:
    return open(os.devnull, "w", encoding="utf-8")  # open as long as the process lives


def _join(place: ProcessInfo, config: DistributedConfig) -> MultiProcessGroup:
    import jax
    from jax._src import distributed

    # A signal is ours to handle: jax's service would swallow SIGTERM before the loop is there to hear it.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    own = "this process" if place.process_id is None else f"process {place.process_id} of {place.num_processes}"
    message = (
        f"{own} did not find the others within {config.start_timeout} s (distributed.start_timeout); the first one "
        f"listens at {place.coordinator_address or 'an address that the cluster says'}: do all run, and reach it?"
    )
    # jax would abort with a page of its stack; and it cannot be stopped otherwise while it waits.
    timer = threading.Timer(config.start_timeout, exit_immediately, (message, EXIT_PEER_LOST))
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **place._asdict(),
            initialization_timeout=config.start_timeout + 10,
            # Ours comes first, with a message that says who; jax's is for a process that hears nothing any more.
            heartbeat_timeout_seconds=config.peer_timeout + config.peer_timeout // 2 + 5,
            shutdown_timeout_seconds=config.end_timeout,
        )
    except Exception as error:
        raise UserError(f"{own} could not join the others: {' '.join(str(error).split())[:300]}") from error
    finally:
        timer.cancel()
    state = distributed.global_state
    print(
        f"process {state.process_id} of {state.num_processes}, coordinator {state.coordinator_address}",
        file=sys.stderr,
        flush=True,
    )
    return MultiProcessGroup(state.client, state.process_id, state.num_processes, config)
