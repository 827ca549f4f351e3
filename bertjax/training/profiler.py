"""A trace of some updates of a run (`profile.steps`), in files that TensorBoard and Perfetto open."""

from __future__ import annotations

from typing import Any

import jax

from bertjax.training.run_context import RunContext

HOW_TO_OPEN = (
    "a trace of updates {first} to {last} lies in {folder}: load its perfetto_trace.json.gz at https://ui.perfetto.dev "
    "or see the tab Profile of: tensorboard --logdir {root} (pip install tensorboard tensorboard-plugin-profile)"
)
NO_TRACE = "warning: profile.steps gave no trace ({error}); the run goes on"


class Profiler:
    """Records the updates of `profile.steps` below the work folder, and says where; a `with` ends it with the run.

    Layout: `profile/plugins/profile/<time>/`, with `<host>.xplane.pb` for TensorBoard and `perfetto_trace.json.gz`.
    Only the first process records. A run that is taken up in the midst of them records those that are left. A trace
    that cannot be made is told, and the run goes on.
    """

    def __init__(self, run: RunContext):
        self._wanted, self._console, self._root = run.config.profiled, run.console, run.workdir / "profile"
        self._waits = bool(self._wanted) and jax.process_index() == 0
        self._first: int | None = None  # update of the trace; None = there is none under way
        self._last = 0
        self._mark: Any = None

    def __enter__(self) -> Profiler:
        return self

    def before_dispatch(self, step: int, state: Any, ahead: int = 1) -> None:
        """The updates `step` + 1 to `step` + `ahead` are about to be sent; `state`, perhaps under way, is before them.

        The device is waited for where the trace begins and where it ends, so that it holds these updates alone.
        """
        if not self._waits and self._first is None:
            return
        self._unmark()
        if step + 1 >= self._wanted.stop:
            jax.block_until_ready(state)
            self._waits = False
            self._end()
        elif self._waits and step + ahead >= self._wanted.start:
            jax.block_until_ready(state)
            self._waits = False
            self._begin(step + 1)
        if self._first is not None:
            self._last = step + ahead
            self._mark = jax.profiler.StepTraceAnnotation("train", step_num=step + 1)
            self._mark.__enter__()

    def __exit__(self, *_: object) -> None:
        self._unmark()
        self._end()

    def _begin(self, first: int) -> None:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # an event a call of Python would crowd out those of the device
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
        said = HOW_TO_OPEN.format(first=first, last=self._last, folder=folder, root=self._root)
        self._console.print(said)

    def _unmark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
