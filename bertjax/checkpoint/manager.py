"""Checkpoints of a run: orbax writes and reads the arrays, we decide which steps are good and which are kept.

    <directory>/<step>/state/        the arrays, an orbax item (a nested dict named like the state's fields)
    <directory>/<step>/bertjax.json  meta, metrics, the shape and type of every leaf, digests of its files
    <directory>/damaged/<step>       steps that did not match their digests, set aside

The manifest is written before orbax renames the step to its final name, so no visible step lacks one. The list of steps
is always what lies on the disk: orbax's own manager remembers steps whose asynchronous commit failed, and deletes old
ones by that memory. Killing the process at any moment is safe; losing power is not promised to be.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from bertjax.checkpoint.manifest import DamagedCheckpointError, read_manifest, verify_checkpoint, write_manifest
from bertjax.checkpoint.retention import select_best_step, steps_to_keep
from bertjax.errors import UserError, comma_list
from bertjax.metrics import HIGHER_IS_BETTER

log = logging.getLogger(__name__)

DAMAGED = "damaged"
_ITEM = "state"
_TRASH = ".trash-"
_TEMPORARY = ("*.orbax-checkpoint-tmp*", f"{_TRASH}*")
_NONE, _ALL_DAMAGED, _NOT_THERE = -1, -2, -3
_LONGEST_SAVE = 3600  # seconds until a process that never finishes its part of a checkpoint is an error
_NAMED_AT_MOST = 5


class RestoredCheckpoint(NamedTuple):
    """What `restore` found: the state on its devices, the JSON saved beside it, the step."""

    state: Any
    meta: dict[str, Any]
    step: int


class Checkpoints:
    """The checkpoints of one directory (a local or mounted path).

    keep         how many of the last steps stay
    keep_every   steps that are multiples of it stay for ever
    best_metric  the step with the best value of it stays; lower is better unless a score is named (`metrics.is_better`)
    read_only    changes nothing on the disk: for looking at a run that another process may be writing
    first        of several processes, gives all of them what its second argument makes on the first one: they see the
                 folder through caches of their own, and may not agree on what it holds
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int,
        keep_every: int | None = None,
        best_metric: str | None = None,
        read_only: bool = False,
        run_on_first: Callable[[str, Callable[[], Any]], Any] = lambda what, make: make(),
    ):
        if keep < 1:
            raise UserError(f"checkpoint.keep must be at least 1, not {keep}")
        if keep_every is not None and keep_every < 1:
            raise UserError(f"checkpoint.keep_every must be at least 1, not {keep_every}")
        self.directory = Path(directory).absolute()
        self.keep, self.keep_every, self.best_metric, self.read_only = keep, keep_every, best_metric, read_only
        self._run_on_first = run_on_first
        self._pending: tuple[int, dict[str, Any]] | None = None
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.AsyncOptions(timeout_secs=_LONGEST_SAVE, post_finalization_callback=self._seal),
        )
        if not read_only:
            self._prepare_directory()

    def save(self, step: int, state: Any, meta: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Starts writing `state` and returns as soon as its arrays have left the device: they may be donated then.

        Waits for the save before this one, and raises its error here. `meta` must be JSON. Raises `UserError` when
        `step` is not newer than every step on the disk: a save is never skipped in silence.
        """
        self._require_writable()
        self.wait()
        newest = self._run_on_first("the list of checkpoints", lambda: max(self._numbered(), default=-1))
        if step <= newest:
            raise UserError(
                f"cannot save step {step}: {self.directory} already holds step {newest}; "
                "resume from it, or use another work folder"
            )
        leaves = {name: _as_array(leaf) for name, leaf in _named_leaves(state).items()}
        body = {"format": 1, "step": step, "meta": dict(meta), "metrics": dict(metrics or {}), "state": _shapes(leaves)}
        json.dumps(body)  # fail here, not in the background
        self._pending = (step, body)
        try:
            args = ocp.args.Composite(**{_ITEM: ocp.args.StandardSave(_nested(leaves))})
            self._checkpointer.save(self.directory / str(step), args=args)
        except Exception as error:
            self._give_up(error)

    def wait(self) -> None:
        """Returns when the last save is on the disk and old steps are gone; raises `UserError` if it failed."""
        try:
            self._checkpointer.wait_until_finished()
        except Exception as error:
            if self._pending is not None:
                self._give_up(error)
            if jax.process_index() == 0:  # `save` has told it; its threads may have written on
                self._remove_leftovers()
        if self._pending is not None:
            self._pending = None
            self._collect()

    def close(self) -> None:
        """Waits, then ends the background threads."""
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def all_steps(self) -> list[int]:
        """Finished steps, oldest first; their digests are compared only when one is restored."""
        return self._run_on_first("the list of checkpoints", self._finished)

    def best_step(self) -> int | None:
        """The finished step with the best value of `best_metric`; None where none was measured."""

        def found() -> int | None:
            return select_best_step(self._scores(), self._lower_is_better)

        self.wait()
        return self._run_on_first("the best checkpoint", found)

    def latest_step(self) -> int | None:
        """The newest finished step."""
        return max(self.all_steps(), default=None)

    def read_meta(self, step: int) -> dict[str, Any]:
        """The `meta` saved with a step; raises `UserError` if there is no such step."""
        body = self._manifest(step)
        if body is None:
            raise UserError(
                f"no checkpoint of step {step} in {self.directory}; there are: {comma_list(self.all_steps())}"
            )
        return body["meta"]

    def delete_after(self, step: int) -> None:
        """Deletes the steps after `step`: the run went back, and is going to save them anew."""
        self._require_writable()
        self.wait()
        if jax.process_index() == 0:
            for later in self._numbered():
                if later > step:
                    self._delete(later)

    def restore(
        self, abstract_state: Any, step: int | None = None, absent: Mapping[str, Any] = MappingProxyType({})
    ) -> RestoredCheckpoint | None:
        """The newest undamaged step, or `step`, as arrays with the shapes, types and shardings of `abstract_state`.

        `abstract_state` is a tree of `jax.ShapeDtypeStruct`; a leaf without sharding goes to the first device. `absent`
        gives the values of leaves, by name, that a checkpoint older than they are does not have.
        Damaged newer steps are named in a warning and moved to `damaged/`. Returns None if there is no step at all.
        Raises `UserError` if all are damaged, or if the tree, a shape or a type differs from what was saved.
        """
        if not self.read_only:
            self.wait()
        chosen = self._run_on_first("a checkpoint that is whole", lambda: self._choose(step))
        if chosen == _NOT_THERE:
            raise UserError(
                f"no checkpoint of step {step} in {self.directory}; there are: {comma_list(self.all_steps())}"
            )
        if chosen == _NONE:
            return None
        if chosen == _ALL_DAMAGED:
            which = f"step {step} is" if step is not None else f"steps {comma_list(self._numbered())} are all"
            raise UserError(
                f"checkpoints in {self.directory}: {which} damaged (see the warnings above); nothing was changed. "
                "Restore them from a copy, or start in another work folder"
            )
        body = self._read_manifest(chosen)
        wanted = _named_leaves(abstract_state)
        younger = {name: absent[name] for name in wanted if name in absent and name not in body["state"]}
        saved = {name: leaf for name, leaf in wanted.items() if name not in younger}
        self._require_same_leaves(chosen, body["state"], _shapes(saved))
        target = _nested({name: _target(leaf) for name, leaf in saved.items()})
        with ocp.StandardCheckpointer() as reader:  # reads the item alone: orbax's notes beside it have no digest
            found = _named_leaves(reader.restore(self.directory / str(chosen) / _ITEM, target))
        for name, value in younger.items():
            leaf = _target(wanted[name])
            found[name] = jax.device_put(np.full(leaf.shape, value, leaf.dtype), leaf.sharding)
        state = jax.tree_util.tree_unflatten(jax.tree.structure(abstract_state), [found[name] for name in wanted])
        return RestoredCheckpoint(state, body["meta"], chosen)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Runs on the first process when all array files are written, before orbax renames the step into place."""
        assert self._pending is not None
        step, body = self._pending
        final = self.directory / str(step)
        temporary = sorted(self.directory.glob(f"{step}.orbax-checkpoint-tmp*"))
        write_manifest(temporary[-1] if temporary else final, _ITEM, body)

    def _give_up(self, error: Exception) -> None:
        step, self._pending = self._pending[0] if self._pending else None, None
        if jax.process_index() == 0:
            self._remove_leftovers()
        raise UserError(
            f"checkpoint of step {step} could not be written to {self.directory}: {_reason(error)}"
        ) from error

    def _prepare_directory(self) -> None:
        if jax.process_index() != 0:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the checkpoint folder {self.directory}: {error.strerror}") from error
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for pattern in _TEMPORARY:
            for path in self.directory.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)

    def _require_writable(self) -> None:
        if self.read_only:
            raise ValueError("these checkpoints were opened read-only")

    # -- keeping ---------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Deletes what the retention rule does not keep; a step is first renamed, so that none is ever half there."""
        if jax.process_index() != 0:
            return
        scores = self._scores()
        for step in set(scores) - steps_to_keep(scores, self.keep, self.keep_every, scores, self._lower_is_better):
            self._delete(step)

    @property
    def _lower_is_better(self) -> bool:
        return not HIGHER_IS_BETTER.fullmatch(self.best_metric or "")

    def _scores(self) -> dict[int, float | None]:
        """`best_metric` of the finished steps, where it was measured."""
        bodies = {step: body for step in self._numbered() if (body := self._manifest(step)) is not None}
        return {step: body["metrics"].get(self.best_metric) for step, body in bodies.items()}

    def _delete(self, step: int) -> None:
        trash = self.directory / f"{_TRASH}{step}"
        (self.directory / str(step)).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    # -- finding ---------------------------------------------------------------------------------------------------

    def _numbered(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdecimal() and path.is_dir())

    def _manifest(self, step: int) -> dict[str, Any] | None:
        try:
            return read_manifest(self.directory / str(step))
        except DamagedCheckpointError:
            return None

    def _finished(self) -> list[int]:
        return [step for step in self._numbered() if self._manifest(step) is not None]

    def _read_manifest(self, step: int) -> dict[str, Any]:
        """Of a step that the first process has found whole."""
        try:
            return read_manifest(self.directory / str(step))
        except DamagedCheckpointError as error:
            raise UserError(
                f"process {jax.process_index()} cannot read the checkpoint of step {step} in {self.directory}, which "
                f"the first process has found whole ({error}); the work folder must be on a disk that all hosts share"
            ) from error

    def _choose(self, step: int | None) -> int:
        """The step to restore, or one of the negative marks; sets damaged ones aside."""
        numbered = self._numbered()
        if step is not None and step not in numbered:
            return _NOT_THERE
        if not numbered:
            return _NONE
        damaged: list[int] = []
        for candidate in [step] if step is not None else reversed(numbered):
            try:
                verify_checkpoint(self.directory / str(candidate))
            except DamagedCheckpointError as error:
                log.warning("checkpoint of step %d in %s is damaged: %s", candidate, self.directory, error)
                damaged.append(candidate)
            else:
                self._set_aside(damaged, candidate)
                return candidate
        return _ALL_DAMAGED

    def _set_aside(self, damaged: list[int], used: int) -> None:
        for step in damaged if not self.read_only else []:
            target = self.directory / DAMAGED / str(step)
            copies = 1
            while target.exists():
                copies += 1
                target = self.directory / DAMAGED / f"{step}-{copies}"
            target.parent.mkdir(exist_ok=True)
            (self.directory / str(step)).rename(target)
            log.warning("moved the damaged step %d to %s", step, target)
        if damaged:
            log.warning("using the checkpoint of step %d instead of %s", used, comma_list(damaged))

    def _require_same_leaves(self, step: int, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
        """Orbax would cast types in silence, and its message for the rest is a page long."""
        faults = [f"{name} is only in the checkpoint" for name in stored if name not in wanted]
        faults += [f"{name} is not in the checkpoint" for name in wanted if name not in stored]
        faults += [
            f"{name} is {_shape_text(stored[name])} in the checkpoint and {_shape_text(wanted[name])} in this run"
            for name in wanted
            if name in stored and stored[name] != wanted[name]
        ]
        if faults:
            raise UserError(
                f"the checkpoint of step {step} in {self.directory} does not fit this run's model or optimizer: "
                + comma_list(faults, _NAMED_AT_MOST)
            )


def _named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by path: `params/encoder/layers/...`, fields and keys alike."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_named_leaves`, with dicts only: what orbax stores does not depend on our classes."""
    root: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return root


def _as_array(leaf: Any) -> jax.Array:
    """Numbers become arrays, in the type that jax would give them."""
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def _shapes(leaves: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: [str(jnp.result_type(leaf)), list(np.shape(leaf))] for name, leaf in leaves.items()}


def _shape_text(entry: list[Any]) -> str:
    dtype, shape = entry
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf), sharding=sharding)


def _reason(error: BaseException) -> str:
    """One line; a full disk is named as such wherever in the library it was met."""
    text = " ".join(str(error).split())
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    if full or any(sign in text for sign in ("No space left", "ENOSPC", "quota exceeded")):
        return "no space left on the device; free some, earlier checkpoints are intact"
    return f"{type(error).__name__}: {text[:300]}; earlier checkpoints are intact"
