"""The processes of a run: broadcasts from the first one, common steps to stop or save at, and a common end.

All of it goes through the key-value store of jax's coordination service, which runs in the first process. It needs no
device, and so it works while the devices wait for a lost process.

jax (0.10 to 0.12) has no public name for the client of that store: `_coordination_service` is the only function that
uses `jax._src`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from bertjax.config.distributed import DistributedConfig
from bertjax.errors import UserError, comma_list
from bertjax.runtime.cluster import ADVICE, ProcessInfo, find_process_info
from bertjax.runtime.heartbeat import EXIT_PEER_LOST, Heartbeat, exit_immediately

T = TypeVar("T")

NETWORK_ERRORS = ("Gloo", "NCCL", "RCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "Connection ", "barrier")
"""Words of the messages of collectives and barriers that fail when another process is lost."""

_MAX_NAMED = 6


class ProcessGroup:
    """The processes that train one model, and the index of this one; this base class is a group of one process."""

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

    def require_same(self, what: str, describe: Callable[[], Mapping[str, Any]], advice: str) -> None:
        """Checks that all processes have the same values; all must call this in the same order.

        Args:
            what: Name of the values, for messages.
            describe: Gives this process's values by name, as JSON can hold them; a single process does not call it.
            advice: What the user can do about a difference.

        Raises:
            UserError: Some process has another value; raised by all processes.
        """
        if self.count == 1:
            return
        local = json.loads(json.dumps(describe()))
        first = self.run_on_first(what, lambda: local)
        differences = self._gather(what, comma_list(_differences(first, local), _MAX_NAMED) if first != local else "")
        named = [f"process {index}: {text}" for index, text in differences.items() if text]
        if named:
            raise UserError(f"{what} differ from those of process 0 in {'; '.join(named)}. {advice}")

    def _gather(self, what: str, text: str) -> dict[int, str]:
        """Returns the texts of all processes but the first, to all."""
        return {}

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
    """One of several processes.

    Args:
        client: Client of jax's key-value store.
        index: Index of this process.
        count: Number of processes.
        config: Timeouts.
    """

    def __init__(self, client: Any, index: int, count: int, config: DistributedConfig):
        self.index, self.count, self.config = index, count, config
        self._client, self._calls = client, 0
        self._heartbeat = Heartbeat(client, index, count, config.peer_timeout)

    def run_on_first(self, what: str, make: Callable[[], T]) -> T:
        self._calls += 1
        key = f"bertjax/first/{self._calls}"
        if self.index == 0:
            text = json.dumps(make())
            self._client.key_value_set(key, text)
        else:
            text = self._wait_for(what, key)
        return json.loads(text)

    def _gather(self, what: str, text: str) -> dict[int, str]:
        folder = f"bertjax/gather/{self._calls}/"
        if self.index:
            self._client.key_value_set(f"{folder}{self.index}", text)
        return {int(index): each for index, each in self.run_on_first(what, lambda: self._texts(what, folder)).items()}

    def _texts(self, what: str, folder: str) -> dict[int, str]:
        return {index: self._wait_for(what, f"{folder}{index}") for index in range(1, self.count)}

    def _wait_for(self, what: str, key: str) -> str:
        try:
            return str(self._client.blocking_key_value_get(key, 1000 * self.config.wait_timeout))
        except Exception as error:
            raise self._timeout_error(what, error) from error

    def barrier(self, what: str, seconds: int) -> None:
        """Waits for all processes.

        Args:
            what: Name of the barrier, also for the message after a timeout.
            seconds: Longest wait.

        Raises:
            UserError: Some process did not arrive in time.
        """
        try:
            self._client.wait_at_barrier(f"bertjax/{what}", 1000 * seconds)
        except Exception as error:
            raise self._timeout_error(what, error) from error

    def agree(self, stop: int, save: bool) -> tuple[int, bool]:
        return self._heartbeat.agree(stop, save and self.index == 0)

    @contextlib.contextmanager
    def abort_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if hasattr(error, "exit_code"):  # all processes raise it: they were asked to stop
                raise
            self._fail(error)

    def close(self) -> None:
        """Waits until all processes are done, so that none of them counts the end of another as a loss."""
        with self.abort_on_error():
            self.barrier("the end of all", self.config.wait_timeout)
        self._heartbeat.stop()

    def _timeout_error(self, what: str, error: Exception) -> Exception:
        if "DEADLINE_EXCEEDED" not in str(error):
            return error
        return UserError(
            f"process {self.index} waited {self.config.wait_timeout} s for {what} (distributed.wait_timeout)"
        )

    def _fail(self, error: BaseException) -> None:
        """Ends all processes; does not return."""
        if isinstance(error, UserError):
            message, code = str(error), 2
        elif isinstance(error, KeyboardInterrupt):
            message, code = "interrupted", 130
        else:
            if is_network_error(error):
                self._heartbeat.await_peer_failure()
                code = EXIT_PEER_LOST
            else:
                traceback.print_exception(error)
                code = 1
            message = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self._heartbeat.fail(message, code)


def _differences(first: Mapping[str, Any], local: Mapping[str, Any]) -> list[str]:
    """Returns a text per value that differs from that of the first process."""
    names = [*first, *(name for name in local if name not in first)]
    return [
        f"{name} {local.get(name, 'absent')} instead of {first.get(name, 'absent')}"
        for name in names
        if first.get(name) != local.get(name) or (name in first) != (name in local)
    ]


def is_network_error(error: BaseException) -> bool:
    """Returns whether an error may be caused by the loss of another process, by the words of its message."""
    chain: BaseException | None = error
    while chain is not None:
        if any(word in str(chain) for word in NETWORK_ERRORS):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


@contextlib.contextmanager
def join_processes(config: DistributedConfig) -> Iterator[ProcessGroup]:
    """Joins the processes of this run, if there are several; all but the first print nothing.

    Enter it before jax initialises its devices.

    Args:
        config: Launcher, addresses and timeouts.

    Raises:
        UserError: The processes cannot be found, or did not answer in time.
    """
    info = find_process_info(config)
    group = SINGLE_PROCESS if info is None else _join(info, config)
    if not isinstance(group, MultiProcessGroup):
        yield group
        return
    with contextlib.nullcontext() if group.index == 0 else contextlib.redirect_stdout(_devnull()):
        try:
            with group.abort_on_error():
                yield group
        finally:
            group.close()


def _devnull() -> Any:
    return open(os.devnull, "w", encoding="utf-8")  # open until the process exits


def _coordination_service() -> Any:
    """Returns jax's process_id, num_processes, coordinator_address, and the client of the key-value store."""
    from jax._src import distributed

    return distributed.global_state


def _join(info: ProcessInfo, config: DistributedConfig) -> ProcessGroup:
    import jax

    # Signals are handled by the training loop: jax's service would swallow SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    name = "this process" if info.process_id is None else f"process {info.process_id} of {info.num_processes}"
    message = (
        f"{name} did not find the others within {config.start_timeout} s (distributed.start_timeout); the first one "
        f"listens at {info.coordinator_address or 'an address that the cluster sets'}: do all run, and reach it?"
    )
    # jax would abort with a page of stack, and it cannot be interrupted while it waits.
    timer = threading.Timer(config.start_timeout, exit_immediately, (message, EXIT_PEER_LOST))
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **info._asdict(),
            initialization_timeout=config.start_timeout + 10,
            # The heartbeat comes first, with a message that names the lost process; jax's is the last resort.
            heartbeat_timeout_seconds=config.peer_timeout + config.peer_timeout // 2 + 5,
            shutdown_timeout_seconds=config.end_timeout,
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        if config.cluster == "auto" and info.cluster_detection_method is not None and "should be defined" in reason:
            return SINGLE_PROCESS  # jax found no such cluster
        raise UserError(f"{name} could not join the others: {reason}; {ADVICE}") from error
    finally:
        timer.cancel()
    service = _coordination_service()
    if service.num_processes == 1:
        return SINGLE_PROCESS
    print(
        f"process {service.process_id} of {service.num_processes}, coordinator {service.coordinator_address}",
        file=sys.stderr,
        flush=True,
    )
    return MultiProcessGroup(service.client, service.process_id, service.num_processes, config)
