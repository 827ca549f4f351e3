"""The engine of names: one table per model, read in both directions.

An entry pairs parameters of ours with a Hugging Face tensor. `{L}` in a name is an index along the axis of that
letter: ours are stacked over it, theirs are one tensor each, so `encoder/layers/{L}/attention/query/kernel` with axes
`D D` is the array `encoder/layers/attention/query/kernel` [L, D, D]. Several letters mean several leading axes; theirs
may count from another number, as in `model.layers.{K+1}.attn_norm`.
Every parameter must be covered, every tensor used, tied or ignored by name; anything else is an error that names it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.hf.transforms import TRANSFORMS
from bertjax.types import Params

Tensors = dict[str, np.ndarray]
Sizes = Mapping[str, int]

_INDEX = re.compile(r"\{(\w)([+-]\d+)?\}")
_NAMED_AT_MOST = 4


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of a keymap: our path, their name, letters of our axes (of one layer), how to turn one into the other.

    Several paths of the same axes make one tensor of theirs together (a fused projection). `head` names the head that
    the parameters belong to; empty for the encoder.
    """

    param: str | tuple[str, ...]
    tensor: str
    axes: str
    transform: str = "same"
    head: str = ""

    @property
    def param_templates(self) -> tuple[str, ...]:
        """Our paths, with the letters of their indices."""
        return (self.param,) if isinstance(self.param, str) else self.param

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the stacked arrays lie in the parameters."""
        return tuple(
            "/".join(key for key in part.split("/") if not _INDEX.fullmatch(key)) for part in self.param_templates
        )

    @property
    def stack_axes(self) -> list[str]:
        """Letters of the leading axes, outermost first."""
        return [letter for letter, _ in _INDEX.findall(self.param_templates[0])]

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Shape of one layer's parameter, as ours."""
        return tuple(int(letter) if letter.isdecimal() else sizes[letter] for letter in self.axes.split())

    def param_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Shape of the stacked array."""
        return (*(sizes[letter] for letter in self.stack_axes), *self.shape(sizes))

    def tensor_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Shape of one tensor of theirs."""
        return TRANSFORMS[self.transform].tensor_shape(self.shape(sizes), len(self.param_templates), sizes)

    def count(self, sizes: Sizes) -> int:
        """How many tensors of theirs make one parameter of ours."""
        return math.prod(sizes[letter] for letter in self.stack_axes)

    def names(self, sizes: Sizes) -> Iterator[tuple[tuple[int, ...], str]]:
        """(index along the stacked axes, Hugging Face name), in the order of the stack."""
        for index in itertools.product(*(range(sizes[letter]) for letter in self.stack_axes)):
            name = self.tensor
            for letter, offset in _INDEX.findall(self.tensor):
                number = index[self.stack_axes.index(letter)] + int(offset or 0)
                name = name.replace(f"{{{letter}{offset}}}", str(number))
            yield index, name


@dataclasses.dataclass(frozen=True)
class KeyMap:
    """All names of a model of a family: the entries depend on its config.

    sizes    lengths of the letters, at the true vocabulary size
    renames  (regex, replacement), applied to every tensor name that is read: old and short spellings
    ignored  regexes of tensors that carry nothing (buffers)
    ties     copy -> original: a copy must equal its original, and stands in for it where that is absent
    backbone regex of the names that belong to the family: one that no entry knows is an error, never skipped
    """

    entries: tuple[Entry, ...]
    sizes: Sizes
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    ties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    backbone: str = ".*"

    def select(self, heads: tuple[str, ...]) -> list[Entry]:
        return [entry for entry in self.entries if not entry.head or entry.head in heads]

    def detect_heads(self, tensors: Mapping[str, Any], required: tuple[str, ...]) -> tuple[str, ...]:
        """The heads that are required, and those that have a tensor of their own.

        A name that several heads share (`classifier.weight`) tells nothing: only the class says whose it is.
        """
        owners: dict[str, set[str]] = {}
        for entry in self.entries:
            if entry.head:
                for _, name in entry.names(self.sizes):
                    owners.setdefault(name, set()).add(entry.head)
        told = [next(iter(heads)) for name, heads in owners.items() if name in tensors and len(heads) == 1]
        return tuple(dict.fromkeys((*required, *told)))

    def canonicalize(self, tensors: Mapping[str, np.ndarray], where: str) -> Tensors:
        """The tensors under the names of `entries`, without buffers and tied copies; raises `UserError`."""
        result: Tensors = {}
        for name, array in tensors.items():
            new = name
            for pattern, replacement in self.renames:
                new = re.sub(pattern, replacement, new)
            if any(re.search(pattern, new) for pattern in self.ignored):
                continue
            if new in result:
                raise UserError(f"{where}: two tensors mean {new} ({name} is one); which to take is not ours to guess")
            result[new] = array
        for copy, original in self.ties.items():
            if copy not in result:
                continue
            array = result.pop(copy)
            if not np.array_equal(array, result.setdefault(original, array)):
                raise UserError(
                    f"{where}: {copy} differs from {original}; models whose output table is not tied are not supported"
                )
        return result


def params_to_tensors(
    keymap: KeyMap, params: Params, config: EncoderConfig, heads: tuple[str, ...], where: str = "parameters"
) -> Tensors:
    """Float32 tensors under Hugging Face names, contiguous, without tied copies and without vocabulary padding."""
    sizes, faults, tensors = keymap.sizes, MismatchReport(), Tensors()
    leaves = flatten(params)
    for entry in keymap.select(heads):
        arrays = [_given(leaves, path, entry, sizes, config, faults) for path in entry.paths]
        good = [array for array in arrays if array is not None]
        if len(good) < len(arrays):
            continue
        transform = TRANSFORMS[entry.transform]
        for index, name in entry.names(sizes):
            if name in tensors:
                raise UserError(f"{where}: two heads of {', '.join(heads)} have the name {name}; a file can hold one")
            tensors[name] = np.ascontiguousarray(transform.join([array[index] for array in good], sizes))
    for path in leaves:
        faults.add("unexpected", path)
    faults.check(where)
    return tensors


def _given(
    leaves: dict[str, Any], path: str, entry: Entry, sizes: Sizes, config: EncoderConfig, faults: MismatchReport
) -> np.ndarray | None:
    """Removes one parameter from `leaves` and checks it; None when there is something wrong with it."""
    if path not in leaves:
        faults.add("missing", path)
        return None
    expected = entry.param_shape(sizes)
    array = _without_padding(np.asarray(leaves.pop(path), np.float32), expected, config)
    if array.shape != expected:
        faults.add("misshapen", f"{path} {list(array.shape)} instead of {list(expected)}")
        return None
    if not np.isfinite(array).all():
        faults.add("not finite", path)
        return None
    return array


def tensors_to_params(
    keymap: KeyMap, tensors: Mapping[str, np.ndarray], heads: tuple[str, ...], where: str = "tensors"
) -> Params:
    """Our parameters, float32, from tensors that went through `KeyMap.canonicalize`.

    The vocabulary has its true size, whatever the config's padding. Raises `UserError` naming every missing,
    unexpected, misshapen or non-finite tensor.
    """
    sizes, faults, rest = keymap.sizes, MismatchReport(), dict(tensors)
    leaves: dict[str, np.ndarray] = {}
    for entry in keymap.select(heads):
        if entry.count(sizes) > len(tensors):  # a config may claim a billion layers
            faults.add("missing", f"{entry.tensor} for {entry.count(sizes)} indices")
            continue
        taken = [_take(rest, name, entry, sizes, faults) for _, name in entry.names(sizes)]
        good = [arrays for arrays in taken if arrays is not None]
        if len(good) == len(taken):
            for path, arrays in zip(entry.paths, zip(*good, strict=True), strict=True):
                leaves[path] = np.stack(arrays).reshape(entry.param_shape(sizes))
    for name in rest:
        faults.add("unexpected", name)
    faults.check(where)
    return unflatten(leaves)


class MismatchReport:
    """Collects what is wrong, so that one message names all of it."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def add(self, kind: str, what: str) -> None:
        self.found.setdefault(kind, []).append(what)

    def check(self, where: str) -> None:
        """Raises `UserError` if anything was added."""
        if not self.found:
            return
        texts = []
        for kind, names in self.found.items():
            texts.append(f"{kind}: {comma_list(names, _NAMED_AT_MOST)}")
        raise UserError(f"{where} do not fit the config: {'; '.join(texts)}")


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by their path, keys joined with `/`."""
    leaves: dict[str, Any] = {}
    for key, value in params.items():
        leaves |= flatten(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves


def unflatten(leaves: Mapping[str, Any]) -> Params:
    """The inverse of `flatten`."""
    root: Params = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return root


def _take(
    rest: dict[str, np.ndarray], name: str, entry: Entry, sizes: Sizes, faults: MismatchReport
) -> list[np.ndarray] | None:
    """Removes one tensor from `rest`, checks it and turns it into ours; None when there is something wrong with it."""
    if name not in rest:
        faults.add("missing", name)
        return None
    array, expected = rest.pop(name), entry.tensor_shape(sizes)
    if array.shape != expected:
        faults.add("misshapen", f"{name} {list(array.shape)} instead of {list(expected)}")
        return None
    if not np.isfinite(array).all():
        faults.add("not finite", name)
        return None
    return TRANSFORMS[entry.transform].split(array.astype(np.float32, copy=False), len(entry.param_templates), sizes)


def _without_padding(array: np.ndarray, expected: tuple[int, ...], config: EncoderConfig) -> np.ndarray:
    """The array cut to the true vocabulary, along the axis that has the padded one."""
    if array.ndim != len(expected) or config.table_size == config.vocab_size:
        return array
    padding = (config.table_size, config.vocab_size)
    cuts = [sizes == padding for sizes in zip(array.shape, expected, strict=True)]
    return array[tuple(slice(config.vocab_size) if cut else slice(None) for cut in cuts)]
