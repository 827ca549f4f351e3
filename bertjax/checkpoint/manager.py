"""Checkpoints of a run: orbax writes and reads the arrays, bertjax decides which steps are valid and which are kept.

    <directory>/<step>/state/        the arrays, an orbax item (a nested dict named like the state's fields)
    <directory>/<step>/bertjax.json  manifest: meta, metrics, shape and type of every leaf, digests of the files
    <directory>/damaged/<step>       steps that did not match their digests; in a store, their manifests

The manifest is written before orbax renames the step to its final name, so no visible step lacks one. The list of steps
is always read from the disk: orbax's own manager keeps it in memory, including steps whose asynchronous commit failed,
and deletes old ones by it. Killing the process at any moment is safe; a power failure may not be.

In the local copy of a work directory in an object store, a step counts when its manifest is in the store; arrays are
downloaded to be restored. Several processes need not see one directory then: the first one collects the whole state.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from bertjax.checkpoint.manifest import (
    MANIFEST,
    DamagedCheckpointError,
    body_digest,
    manifests,
    read_manifest,
    steps_in,
    verify_checkpoint,
    write_manifest,
)
from bertjax.checkpoint.settings import Checkpointing
from bertjax.checkpoint.surgery import leaf_specs, require_same_leaves, restore_target
from bertjax.errors import UserError, comma_list
from bertjax.io.staging import stored_folder
from bertjax.io.store import store_errors, store_warnings
from bertjax.io.tree_paths import flatten_tree, unflatten_tree

log = logging.getLogger(__name__)

DAMAGED = "damaged"
_ITEM = "state"
_TRASH = ".trash-"
_SAVE_TIMEOUT = 3600  # seconds until a process that never finishes its part of a checkpoint is an error


class RestoredCheckpoint(NamedTuple):
    """A restored checkpoint: the state on its devices, the JSON saved with it, the step."""

    state: Any
    meta: dict[str, Any]
    step: int


class Checkpoints:
    """The checkpoints of one directory (a local or mounted path).

    Args:
        directory: created if it does not exist.
        settings: which steps stay.
        read_only: change nothing on the disk, for reading a run that another process may be writing.
        run_on_first: with several processes, gives all of them the result of the function on the first one: they see
            the directory through different caches, and might not agree on its content.

    Raises:
        UserError: the directory cannot be created.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: Checkpointing,
        *,
        read_only: bool = False,
        run_on_first: Callable[[str, Callable[[], Any]], Any] = lambda what, make: make(),
    ):
        self.directory = Path(directory).absolute()
        self.settings, self.read_only = settings, read_only
        self._run_on_first = run_on_first
        self._pending: tuple[int, dict[str, Any]] | None = None
        self._store = stored_folder(self.directory.parent)
        self._gathers = self._store is not None and jax.process_count() > 1
        alone = {"primary_host": jax.process_index(), "active_processes": {jax.process_index()}}
        together = ocp.options.MultiprocessingOptions(**(alone if self._gathers else {}))
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                composite_options=ocp.CompositeOptions(multiprocessing_options=together),
                **{_ITEM: ocp.StandardCheckpointHandler(multiprocessing_options=together)},
            ),
            async_options=ocp.AsyncOptions(timeout_secs=_SAVE_TIMEOUT, post_finalization_callback=self._write_manifest),
            multiprocessing_options=together,
        )
        if not read_only and jax.process_index() == 0:
            with store_errors(f"cannot create the checkpoint folder {self.directory}"):
                self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, step: int, state: Any, meta: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Starts to write a step and returns as soon as its arrays have left the device: they may then be donated.

        Waits for the save before this one, and raises its error.

        Args:
            step: number of the checkpoint, higher than any on the disk.
            state: tree of arrays and numbers.
            meta: JSON values to save with it.
            metrics: measured at this step; `best_metric` is one of them.

        Raises:
            UserError: the save before this one failed, or a step as new is on the disk: no save is skipped silently.
        """
        self._require_writable()
        self.wait()
        newest = self._run_on_first("the list of checkpoints", lambda: max(steps_in(self.directory), default=-1))
        if step <= newest:
            raise UserError(
                f"cannot save step {step}: {self._where()} already holds step {newest}; "
                "resume from it, or use another work directory"
            )
        leaves = {
            path: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
            for path, leaf in flatten_tree(state).items()
        }
        if self._gathers:
            leaves = {path: multihost_utils.process_allgather(leaf, tiled=True) for path, leaf in leaves.items()}
            if jax.process_index() > 0:
                return
        body = {
            "format": 1,
            "step": step,
            "meta": dict(meta),
            "metrics": dict(metrics or {}),
            "state": leaf_specs(leaves),
        }
        json.dumps(body)  # fail here, not in the background
        self._pending = (step, body)
        try:
            args = ocp.args.Composite(**{_ITEM: ocp.args.StandardSave(unflatten_tree(leaves))})
            self._checkpointer.save(self.directory / str(step), args=args)
        except Exception as error:
            self._abandon_save(error)

    def wait(self) -> None:
        """Returns when the last save is on the disk and old steps are deleted.

        Raises:
            UserError: the save failed.
        """
        try:
            self._checkpointer.wait_until_finished()
        except Exception as error:
            if self._pending is not None:
                self._abandon_save(error)
            if jax.process_index() == 0:  # `save` has raised it; its threads may have gone on writing
                self._remove_leftovers()
        if self._pending is not None:
            self._pending = None
            self._delete_old_steps()

    def close(self) -> None:
        """Waits as `wait`, then ends the background threads."""
        try:
            self.wait()
        finally:
            self._checkpointer.close()

    def delete_after(self, step: int) -> None:
        """Deletes the steps after `step`: the run was rolled back and will save them again."""
        self._require_writable()
        self.wait()
        if jax.process_index() == 0:
            for later in steps_in(self.directory):
                if later > step:
                    self._delete(later)

    # -- reading -------------------------------------------------------------------------------------------------------

    def all_steps(self) -> list[int]:
        """Returns the finished steps, oldest first; their digests are compared only when one is restored."""
        return self._run_on_first("the list of checkpoints", lambda: list(manifests(self.directory)))

    def best_step(self) -> int | None:
        """Returns the finished step with the best value of `best_metric`; None where none was measured."""
        self.wait()
        return self._run_on_first("the best checkpoint", lambda: self.settings.best_step(self._scores()))

    def latest_step(self) -> int | None:
        """Returns the newest finished step; None where there is none."""
        return max(self.all_steps(), default=None)

    def remaining(self) -> str:
        """Returns what is left on the disk after a failure, for messages."""
        if not self.directory.is_dir():
            return "the directory is gone, and every checkpoint with it"
        steps = list(manifests(self.directory))
        return f"the checkpoint of step {steps[-1]} is there to resume from" if steps else "there is no checkpoint yet"

    def restore(
        self, abstract_state: Any, step: int | None = None, absent: Mapping[str, Any] = MappingProxyType({})
    ) -> RestoredCheckpoint | None:
        """Restores the newest undamaged step; damaged newer ones are named in a warning and moved to `damaged/`.

        Args:
            abstract_state: tree of `jax.ShapeDtypeStruct`, with the shapes, types and shardings of the result; a leaf
                without sharding goes to the first device.
            step: restore this step instead.
            absent: values of leaves, by regexes of their paths, that older checkpoints do not have.

        Returns:
            The checkpoint; None if the directory holds no step.

        Raises:
            UserError: the step does not exist, all steps are damaged, or the tree, a shape or a type differs.
        """
        if not self.read_only:
            self.wait()
        chosen, digest, problem = self._run_on_first("a valid checkpoint", lambda: self._choose(step))
        if problem is not None:
            raise UserError(problem)
        if chosen is None:
            return None
        try:
            restored = self._read(chosen, digest, abstract_state, absent)
        except Exception:
            if not self._is_deleted(chosen):
                raise
        else:
            if not self._is_deleted(chosen):
                return restored
        return self.restore(abstract_state, step, absent)  # chooses again

    # -- the directory -------------------------------------------------------------------------------------------------

    def _read(self, chosen: int, digest: str, abstract_state: Any, absent: Mapping[str, Any]) -> RestoredCheckpoint:
        self._fetch(chosen)
        body = self._read_chosen(chosen, digest)
        targets = {path: restore_target(leaf) for path, leaf in flatten_tree(abstract_state).items()}
        unsaved = [path for path in targets if path not in body["state"]]
        new = {path: value for path in unsaved for regex, value in absent.items() if re.fullmatch(regex, path)}
        saved = {path: target for path, target in targets.items() if path not in new}
        require_same_leaves(f"step {chosen} in {self._where()}", body["state"], leaf_specs(saved))
        with ocp.StandardCheckpointer() as reader:  # reads the item alone: orbax's other files have no digest
            leaves = flatten_tree(reader.restore(self.directory / str(chosen) / _ITEM, unflatten_tree(saved)))
        for path, value in new.items():
            target = targets[path]
            leaves[path] = jax.device_put(np.full(target.shape, value, target.dtype), target.sharding)
        state = jax.tree.unflatten(jax.tree.structure(abstract_state), [leaves[path] for path in targets])
        return RestoredCheckpoint(state, body["meta"], chosen)

    def _write_manifest(self) -> None:
        """Runs on the first process when all array files are written, before orbax renames the step."""
        assert self._pending is not None
        step, body = self._pending
        temporary = sorted(self.directory.glob(f"{step}{ocp.utils.TMP_DIR_SUFFIX}*"))
        folder = temporary[-1] if temporary else self.directory / str(step)
        write_manifest(folder, _ITEM, body)
        if self._store is not None:
            self._store.publish(self._stored_name(step), folder, MANIFEST)

    def _abandon_save(self, error: Exception) -> None:
        step, self._pending = self._pending[0] if self._pending else None, None
        if jax.process_index() == 0:
            self._remove_leftovers()
        raise UserError(
            f"checkpoint of step {step} could not be written to {self._where()}: {_reason(error)}; {self.remaining()}"
        ) from error

    def _remove_leftovers(self) -> None:
        for pattern in (f"*{ocp.utils.TMP_DIR_SUFFIX}*", f"{_TRASH}*"):
            for path in self.directory.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)
        if self._store is not None:
            with contextlib.suppress(OSError):  # the store may be the failure
                for step in self._store.incomplete(self.directory.name, MANIFEST):
                    self._store.remove(self._stored_name(step), MANIFEST)

    def _where(self) -> str:
        return str(self.directory) if self._store is None else f"{self._store.url}/{self.directory.name}"

    def _stored_name(self, step: int | str) -> str:
        return f"{self.directory.name}/{step}"

    def _fetch(self, step: int) -> None:
        """Downloads a step from the store of the work directory, unless its files are here and undamaged."""
        if self._store is None:
            return
        folder = self.directory / str(step)
        with contextlib.suppress(DamagedCheckpointError):
            verify_checkpoint(folder)
            return
        reading = store_errors(f"the checkpoint of step {step} cannot be read from {self._store.url}")
        with reading, contextlib.suppress(DamagedCheckpointError):  # its reader reports the damage
            self._store.fetch(self._stored_name(step), [MANIFEST])
            self._store.fetch(self._stored_name(step), read_manifest(folder)["files"])

    def _require_writable(self) -> None:
        if self.read_only:
            raise ValueError("these checkpoints were opened read-only")

    def _delete_old_steps(self) -> None:
        if jax.process_index() == 0:
            scores = self._scores()
            for step in scores.keys() - self.settings.steps_to_keep(scores):
                self._delete(step)

    def _delete(self, step: int) -> None:
        """Renames a step before deleting it, so that no visible step is ever incomplete."""
        if self._store is not None:
            with store_warnings(f"the checkpoint of step {step} cannot be deleted from {self._store.url}"):
                self._store.remove(self._stored_name(step), MANIFEST)
        trash = self.directory / f"{_TRASH}{step}"
        (self.directory / str(step)).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _is_deleted(self, step: int) -> bool:
        """Returns whether the run that writes here has deleted a step that this reader has chosen."""
        return self.read_only and not (self.directory / str(step)).exists()

    def _scores(self) -> dict[int, float | None]:
        best = self.settings.best_metric
        return {step: body["metrics"].get(best) for step, body in manifests(self.directory).items()}

    def _choose(self, step: int | None) -> tuple[int | None, str | None, str | None]:
        """Returns the step to restore and its digest, or the reason why there is none; moves damaged steps away."""
        steps = steps_in(self.directory)
        if step is not None and step not in steps:
            there = comma_list(manifests(self.directory))
            return None, None, f"no checkpoint of step {step} in {self._where()}; there are: {there}"
        damaged: list[int] = []
        for candidate in [step] if step is not None else reversed(steps):
            self._fetch(candidate)
            try:
                digest = body_digest(verify_checkpoint(self.directory / str(candidate)))
            except DamagedCheckpointError as error:
                if self._is_deleted(candidate):
                    return self._choose(step)
                log.warning("checkpoint of step %d in %s is damaged: %s", candidate, self._where(), error)
                damaged.append(candidate)
            else:
                self._set_aside(damaged, candidate)
                return candidate, digest, None
        if not damaged:
            return None, None, None
        which = f"step {step} is" if step is not None else f"steps {comma_list(steps)} are all"
        problem = (
            f"checkpoints in {self._where()}: {which} damaged (see the warnings above); nothing was changed. "
            "Restore them from a copy, or start in another work directory"
        )
        return None, None, problem

    def _set_aside(self, damaged: list[int], used: int) -> None:
        for step in damaged if not self.read_only else []:
            names = [f"{step}", *(f"{step}-{copy}" for copy in range(2, 1000))]
            target = next(path for name in names if not (path := self.directory / DAMAGED / name).exists())
            target.parent.mkdir(exist_ok=True)
            (self.directory / str(step)).rename(target)
            log.warning("moved the damaged step %d to %s", step, target)
            if self._store is not None:
                with store_warnings(f"the damaged checkpoint of step {step} cannot be moved in {self._store.url}"):
                    self._store.publish(self._stored_name(f"{DAMAGED}/{target.name}"), target, MANIFEST)
                    self._store.remove(self._stored_name(step), MANIFEST)
        if damaged:
            log.warning("using the checkpoint of step %d instead of %s", used, comma_list(damaged))

    def _read_chosen(self, step: int, digest: str) -> dict[str, Any]:
        """Returns the manifest of the step that the first process has chosen, if this process sees the same one."""
        try:
            body = read_manifest(self.directory / str(step))
            if body_digest(body) != digest:
                raise DamagedCheckpointError("it is another checkpoint")
            return body
        except DamagedCheckpointError as error:
            raise UserError(
                f"process {jax.process_index()} cannot read the checkpoint of step {step} in {self.directory}, which "
                f"is valid for the first process ({error}); the work directory must be on a disk that all hosts share"
            ) from error


def _reason(error: BaseException) -> str:
    """Returns the error on one line; a full disk is named as such wherever in the library it was raised."""
    text = " ".join(str(error).split())
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    if full or any(sign in text for sign in ("No space left", "ENOSPC", "quota exceeded")):
        return "no space left on the device; free some"
    return f"{type(error).__name__}: {text[:300]}"
