"""The processes of a run: broadcasts from the first one, common steps to stop or save at, and a common end.

All of it goes through the key-value store of jax's coordination service, which runs in the first process. It needs no
device, and so it works while the devices wait for a lost process.

jax (0.10 to 0.12) has no public name for the client of that store: `_coordination_service` is the only function that
uses `jax._src`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bertjax.config.distributed import DistributedConfig
from bertjax.errors import UserError, comma_list
from bertjax.runtime.cluster import ProcessInfo, advice, find_process_info
from bertjax.runtime.heartbeat import EXIT_PEER_LOST, Heartbeat, StragglerDetector, exit_immediately

if TYPE_CHECKING:
    import jax

T = TypeVar("T")

NETWORK_ERRORS = ("Gloo", "NCCL", "RCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "Connection ", "barrier")
"""Words of the messages of collectives and barriers that fail when another process is lost."""

_MAX_NAMED = 6
_SECONDS_TO_FAIL = 15
"""Seconds in which the heartbeat surely ends all processes after it has found one to be lost."""


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

    def watch_stragglers(self, measure_idle: Callable[[], tuple[float, float]]) -> StragglerDetector | None:
        """Publishes how long the devices of this process are idle; returns what compares all, on the first one.

        Args:
            measure_idle: Returns the seconds since the start, and those of them without a batch.
        """
        return None

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
        address: HOST:PORT of the store's service.
    """

    def __init__(self, client: Any, index: int, count: int, config: DistributedConfig, address: str | None = None):
        self.index, self.count, self.config = index, count, config
        self._client, self._calls = client, 0
        self._heartbeat = Heartbeat(client, index, count, config.peer_timeout, address)

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
        """Waits for all processes, at most `seconds`; `what` names the barrier, also in messages.

        Raises:
            UserError: Some process did not arrive in time.
        """
        try:
            self._client.wait_at_barrier(f"bertjax/{what}", 1000 * seconds)
        except Exception as error:
            raise self._timeout_error(what, error) from error

    def agree(self, stop: int, save: bool) -> tuple[int, bool]:
        return self._heartbeat.agree(stop, save and self.index == 0)

    def watch_stragglers(self, measure_idle: Callable[[], tuple[float, float]]) -> StragglerDetector | None:
        self._heartbeat.measure_idle = measure_idle
        return None if self.index else StragglerDetector(self._heartbeat.times)

    @contextlib.contextmanager
    def abort_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if hasattr(error, "exit_code"):  # all processes raise it: they were asked to stop
                raise
            self._fail(error)

    def close(self) -> None:
        """Waits until all processes are done and have left jax's service; one that halts meanwhile is named."""
        import jax

        with self.abort_on_error():
            self.barrier("the end of all", self.config.wait_timeout)
        self._heartbeat.begin_shutdown()
        message = f"all processes are done, but not all ended in {self.config.end_timeout} s (distributed.end_timeout)"
        with _time_limit(self.config.end_timeout, message):
            jax.distributed.shutdown()
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

    Enter it before jax initializes its devices.

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


@contextlib.contextmanager
def _time_limit(seconds: float, message: str) -> Iterator[None]:
    """Ends this process with a line when the body takes too long: jax would abort, and cannot be interrupted."""
    timer = threading.Timer(seconds, exit_immediately, (message, EXIT_PEER_LOST))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _delay_aborts() -> None:
    """Lets the heartbeat name a lost process before jax's client, which notices it as well, aborts this one.

    The handler of SIGABRT is libc's `sleep`, which may be called there and gets the signal's number, 6, as seconds.
    """
    libc = ctypes.CDLL(None)
    libc.signal(int(signal.SIGABRT), ctypes.cast(libc.sleep, ctypes.c_void_p))


def connect_devices(mesh: jax.sharding.Mesh) -> None:
    """Lets CPU devices connect along all axes of a mesh, while all processes are at the same point.

    gloo connects at the first collective of a group of devices, and waits 30 s for the others; later collectives wait
    as long as it takes. Without this, a process that compiles or reads for 30 s longer than another would end both.
    """
    import jax

    if jax.process_count() == 1 or mesh.devices.flat[0].platform != "cpu":
        return
    axes = [name for name, size in mesh.shape.items() if size > 1]
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    for count in range(1, len(axes) + 1):
        for group in itertools.combinations(axes, count):
            shape = (math.prod(mesh.shape[name] for name in group),)
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(group))
            ones = jax.make_array_from_callback(shape, sharding, np.ones(shape).__getitem__)
            jax.block_until_ready(jax.jit(lambda array: array.sum(), out_shardings=replicated)(ones))


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
    # The heartbeat comes first, with a message that names the lost process; jax's timeouts are the last resort. jax's
    # clients report twice per timeout, so it may count a process as lost, and abort, after half of it.
    last_resort = 2 * (config.peer_timeout + _SECONDS_TO_FAIL)
    try:
        with _time_limit(config.start_timeout, message):
            jax.distributed.initialize(
                **info._asdict(),
                initialization_timeout=config.start_timeout + 10,
                heartbeat_timeout_seconds=last_resort,
                shutdown_timeout_seconds=max(config.end_timeout, last_resort) + 10,
            )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        if config.cluster == "auto" and info.cluster_detection_method is not None and "should be defined" in reason:
            return SINGLE_PROCESS  # jax found no such cluster
        raise UserError(f"{name} could not join the others: {reason}; {advice()}") from error
    service = _coordination_service()
    if service.num_processes == 1:
        return SINGLE_PROCESS
    print(
        f"process {service.process_id} of {service.num_processes}, coordinator {service.coordinator_address}",
        file=sys.stderr,
        flush=True,
    )
    _delay_aborts()
    return MultiProcessGroup(
        service.client, service.process_id, service.num_processes, config, service.coordinator_address
    )
