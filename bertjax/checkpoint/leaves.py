"""Leaves of a training state: their paths, types and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.errors import UserError

_MAX_NAMED = 5


def leaf_specs(leaves: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns type and shape of every leaf, as the manifest holds them."""
    return {path: [str(jnp.result_type(leaf)), list(np.shape(leaf))] for path, leaf in leaves.items()}


def _spec_text(spec: list[Any]) -> str:
    return f"{spec[0]}{spec[1]}"


def restore_target(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns what orbax restores as this leaf; without a sharding it goes to the first device."""
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf), sharding=sharding)


def require_same_leaves(checkpoint: str, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares leaves: orbax would cast types silently and report the rest on a page.

    Args:
        checkpoint: Step and directory, for the message.
        stored: Result of `leaf_specs` when the checkpoint was written.
        expected: That of this run.

    Raises:
        UserError: Leaves differ.
    """
    differing = [f"{path} is only in the checkpoint" for path in stored if path not in expected]
    differing += [f"{path} is not in the checkpoint" for path in expected if path not in stored]
    differing += [
        f"{path} is {_spec_text(stored[path])} in the checkpoint and {_spec_text(expected[path])} in this run"
        for path in expected
        if path in stored and stored[path] != expected[path]
    ]
    if differing:
        more = f"; and {len(differing) - _MAX_NAMED} more" if len(differing) > _MAX_NAMED else ""
        raise UserError(
            f"the checkpoint of {checkpoint} does not fit this run's model or optimizer: "
            f"{'; '.join(differing[:_MAX_NAMED])}{more}"
        )
