"""Profiler of some steps of a run (`profile.steps`), for TensorBoard and Perfetto."""

from __future__ import annotations

from typing import Any

import jax

from bertjax.training.run_context import RunContext

HOW_TO_OPEN = (
    "a trace of steps {first} to {last} is in {folder}: load its perfetto_trace.json.gz at https://ui.perfetto.dev "
    "or see the tab Profile of: tensorboard --logdir {root} (pip install tensorboard tensorboard-plugin-profile)"
)
NO_TRACE = "warning: profile.steps gave no trace ({error}); the run goes on"


class Profiler:
    """Records the steps of `profile.steps` in the work directory; a `with` ends the trace with the run.

    Layout: `profile/plugins/profile/<time>/`, with `<host>.xplane.pb` for TensorBoard and `perfetto_trace.json.gz`.
    Only the first process records. A run that is resumed among these steps records the remaining ones. When a trace
    fails, the console prints why, and the run goes on.
    """

    def __init__(self, run: RunContext):
        self._steps, self._console, self._root = run.config.profile.recorded, run.console, run.workdir / "profile"
        self._waits = bool(self._steps) and jax.process_index() == 0
        self._first: int | None = None  # first step of the trace; None = not recording
        self._last = 0
        self._mark: Any = None

    def __enter__(self) -> Profiler:
        return self

    def before_dispatch(self, step: int, state: Any, count: int = 1) -> None:
        """Begins or ends the trace before the steps `step` + 1 to `step` + `count` are dispatched.

        Waits for the devices at both ends, so that the trace holds these steps alone.

        Args:
            step: Number of steps dispatched so far.
            state: State after them, perhaps not yet computed.
            count: Number of steps about to be dispatched.
        """
        if not self._waits and self._first is None:
            return
        self._unmark()
        if step + 1 >= self._steps.stop:
            jax.block_until_ready(state)
            self._waits = False
            self._end()
        elif self._waits and step + count >= self._steps.start:
            jax.block_until_ready(state)
            self._waits = False
            self._begin(step + 1)
        if self._first is not None:
            self._last = step + count
            self._mark = jax.profiler.StepTraceAnnotation("train", step_num=step + 1)
            self._mark.__enter__()

    def __exit__(self, *_: object) -> None:
        self._unmark()
        self._end()

    def _begin(self, first: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # one event per Python call would displace those of the devices
        try:
            jax.profiler.start_trace(str(self._root), create_perfetto_trace=True, profiler_options=options)
            self._first = first
        except (OSError, RuntimeError) as error:
            self._console.print(NO_TRACE.format(error=error))

    def _end(self) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        try:
            jax.profiler.stop_trace()
            folder = max((self._root / "plugins" / "profile").iterdir(), key=lambda path: path.stat().st_mtime)
        except (OSError, RuntimeError, ValueError) as error:  # a full disk, or another file than jax expects
            self._console.print(NO_TRACE.format(error=error))
            return
        self._console.print(HOW_TO_OPEN.format(first=first, last=self._last, folder=folder, root=self._root))

    def _unmark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
