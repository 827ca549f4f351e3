"""Names of parameters in bertjax and of tensors in Hugging Face's files: one table per model, used in both directions.

An entry pairs parameters with a tensor. `{L}` in a name is an index along the axis of that letter: parameters are
stacked over it, tensors are not, so `encoder/layers/{L}/attention/query/kernel` with axes `D D` is the array
`encoder/layers/attention/query/kernel` [L, D, D]. Several letters are several leading axes; the tensors may count from
another number, as in `model.layers.{K+1}.attn_norm`.
Every parameter must be covered, every tensor used, tied or ignored by name; anything else is an error that names it.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list
from bertjax.hf.transforms import TRANSFORMS
from bertjax.io.tree_paths import flatten_tree, unflatten_tree
from bertjax.types import Params

Tensors = dict[str, np.ndarray]
Sizes = Mapping[str, int]

log = logging.getLogger(__name__)

# Names of files that were converted from TensorFlow, in any family.
_OLD_NAMES = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
_INDEX = re.compile(r"\{(\w)([+-]\d+)?\}")
_MAX_NAMED = 4
_ROUNDING = 1e-4  # of float32 angles up to some thousand; float16 and bfloat16 round by 2e-4 and 2e-3


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row of a keymap.

    Attributes:
        param: path of a parameter; several paths of the same axes make one tensor together (a fused projection).
        tensor: name of the tensor.
        axes: letters (or numbers) of the axes of one layer's parameter.
        transform: how the parameter becomes the tensor, a key of `TRANSFORMS`.
        head: the head that the parameters belong to; empty for the encoder.
        constant: all numbers of a parameter whose tensor files lack, such as the scale of a norm without one; None = a
            missing tensor is an error.
    """

    param: str | tuple[str, ...]
    tensor: str
    axes: str
    transform: str = "same"
    head: str = ""
    constant: float | None = None

    @property
    def param_templates(self) -> tuple[str, ...]:
        """The parameter paths with the letters of their indices."""
        return (self.param,) if isinstance(self.param, str) else self.param

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the stacked arrays in the parameters."""
        return tuple(
            "/".join(key for key in template.split("/") if not _INDEX.fullmatch(key))
            for template in self.param_templates
        )

    @property
    def stack_axes(self) -> list[str]:
        """The letters of the leading axes, outermost first."""
        return [letter for letter, _ in _INDEX.findall(self.param_templates[0])]

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns the shape of one layer's parameter."""
        return tuple(int(letter) if letter.isdecimal() else sizes[letter] for letter in self.axes.split())

    def param_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns the shape of the stacked array."""
        return (*(sizes[letter] for letter in self.stack_axes), *self.shape(sizes))

    def tensor_shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns the shape of one tensor."""
        return TRANSFORMS[self.transform].tensor_shape(self.shape(sizes), len(self.param_templates), sizes)

    def num_tensors(self, sizes: Sizes) -> int:
        """Returns the number of tensors that make one parameter."""
        return math.prod(sizes[letter] for letter in self.stack_axes)

    def tensor_names(self, sizes: Sizes) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yields (index along the stacked axes, tensor name), in the order of the stack."""
        for index in itertools.product(*(range(sizes[letter]) for letter in self.stack_axes)):
            name = self.tensor
            for letter, offset in _INDEX.findall(self.tensor):
                number = index[self.stack_axes.index(letter)] + int(offset or 0)
                name = name.replace(f"{{{letter}{offset}}}", str(number))
            yield index, name


@dataclasses.dataclass(frozen=True)
class KeyMap:
    """All names of a model; the entries depend on its config.

    Attributes:
        entries: parameters and their tensors.
        sizes: lengths of the axis letters, at the true vocabulary size.
        renames: (regex, replacement), applied to every tensor name that is read: old and short spellings.
        splits: (regex, replacements): a tensor of that name is the tensors of these, one after the other.
        ignored: regexes of tensors that carry nothing, and that `transformers` does not read either (buffers).
        computed: tensors that `transformers` reads and bertjax computes; a file may hold these values, or none.
        ties: copy -> original; a copy replaces its original where that is absent. A table must equal its original; of
            two biases the copy counts, as in `transformers`.
        folded: table -> table: row 0 of the former is added to every row of the latter, as tokens of one kind get both.
        backbone: regex of the names that belong to the family: an unknown one is an error, never skipped.
    """

    entries: tuple[Entry, ...]
    sizes: Sizes
    renames: tuple[tuple[str, str], ...] = ()
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ignored: tuple[str, ...] = ()
    computed: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    ties: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folded: Mapping[str, str] = dataclasses.field(default_factory=dict)
    backbone: str = ".*"

    def select(self, heads: tuple[str, ...]) -> list[Entry]:
        """Returns the entries of the encoder and of these heads."""
        return [entry for entry in self.entries if not entry.head or entry.head in heads]

    def zeros(self, heads: tuple[str, ...]) -> Tensors:
        """Returns the tensors of these heads as zeros."""
        entries = [entry for entry in self.entries if entry.head in heads]
        shapes = {
            name: entry.tensor_shape(self.sizes) for entry in entries for _, name in entry.tensor_names(self.sizes)
        }
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}

    def drop_zeros(self, tensors: Tensors, heads: tuple[str, ...]) -> None:
        """Removes the tensors of each of these heads that are zeros alone: the file was written without the head."""
        for head in heads:
            names = [name for name in self.zeros((head,)) if name in tensors]
            if not any(np.any(tensors[name]) for name in names):
                for name in names:
                    del tensors[name]

    def detect_heads(self, tensors: Mapping[str, Any], required: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the heads that are required, and those that have a tensor of their own.

        A name that several heads share (`classifier.weight`) does not identify one: only the class does.
        """
        owners: dict[str, set[str]] = {}
        for entry in self.entries:
            if entry.head:
                for _, name in entry.tensor_names(self.sizes):
                    owners.setdefault(name, set()).add(entry.head)
        detected = [next(iter(heads)) for name, heads in owners.items() if name in tensors and len(heads) == 1]
        return tuple(dict.fromkeys((*required, *detected)))

    def drop_foreign(self, tensors: Tensors, heads: tuple[str, ...], where: str) -> None:
        """Removes the tensors that belong neither to the family nor to one of these heads, with a warning.

        Args:
            tensors: what `canonicalize` returned.
            heads: heads that are read.
            where: what to name in the warning.
        """
        known = [_INDEX.sub(r"\\d+", entry.tensor.replace(".", r"\.")) for entry in self.select(heads)]
        pattern = re.compile("|".join([*(f"{name}$" for name in known), self.backbone]))
        foreign = sorted(name for name in tensors if not pattern.match(name))
        for name in foreign:
            del tensors[name]
        if foreign:
            log.warning("%s: tensors that the model does not have are ignored: %s", where, comma_list(foreign, 8))

    def canonicalize(self, tensors: Mapping[str, np.ndarray], where: str) -> Tensors:
        """Returns the tensors under the names of `entries`, without buffers, tied copies and folded tables.

        Raises:
            UserError: two tensors have one name, or a tied or a computed table differs from its original.
        """
        result: Tensors = {}
        for name, array in tensors.items():
            new = name
            for pattern, replacement in (*_OLD_NAMES, *self.renames):
                new = re.sub(pattern, replacement, new)
            if any(re.search(pattern, new) for pattern in self.ignored):
                continue
            for part, share in self._split(new, array):
                if part in result:
                    raise UserError(f"{where}: two tensors are {part} ({name} is one of them); remove one")
                result[part] = share
        for name in self.computed.keys() & result.keys():
            stored, expected = result.pop(name), self.computed[name]
            if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=0.0, atol=_ROUNDING):
                raise UserError(
                    f"{where}: {name} is not the table that bertjax computes, or that table rounded to bfloat16; "
                    "remove it from the file if it should be that table"
                )
        for copy, original in self.ties.items():
            if copy in result:
                array = result.pop(copy)
                if not np.array_equal(array, result.setdefault(original, array)):
                    if not copy.endswith(".bias"):
                        raise UserError(
                            f"{where}: {copy} differs from {original}; untied output tables are not supported"
                        )
                    log.warning("%s: %s differs from %s; the former is used", where, copy, original)
                    result[original] = array
        for name, table in self.folded.items():
            if name in result and table in result and result[name].dtype.kind == "f":
                result[table] = result[table] + result.pop(name)[0]
                log.warning("%s: of %s, the first row is part of %s from now on", where, name, table)
        return result

    def _split(self, name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
        for pattern, parts in self.splits:
            if re.search(pattern, name) and array.ndim:
                shares = np.array_split(array, len(parts))  # unequal ones are misshapen
                return [(re.sub(pattern, part, name), share) for part, share in zip(parts, shares, strict=True)]
        return [(name, array)]


class _MismatchReport:
    """Collects mismatches between a file and a config, so that one message names all of them."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, kind: str, name: str) -> None:
        """Adds one mismatch."""
        self._names.setdefault(kind, []).append(name)

    def check(self, name: str, array: np.ndarray, expected: tuple[int, ...]) -> bool:
        """Returns whether an array has the expected shape and finite numbers; adds a mismatch where not."""
        if array.shape != expected:
            self.add("misshapen", f"{name} {list(array.shape)} instead of {list(expected)}")
        elif array.dtype.kind != "f":
            self.add("not floating-point numbers", f"{name} ({array.dtype})")
        elif not np.isfinite(array).all():
            self.add("not finite", name)
        else:
            return True
        return False

    def raise_if_any(self, where: str) -> None:
        """Raises `UserError` if anything was added."""
        if self._names:
            texts = [f"{kind}: {comma_list(names, _MAX_NAMED)}" for kind, names in self._names.items()]
            raise UserError(f"{where} do not fit the config: {'; '.join(texts)}")


def params_to_tensors(keymap: KeyMap, params: Params, config: EncoderConfig, heads: tuple[str, ...]) -> Tensors:
    """Converts parameters to tensors: float32, contiguous, without tied copies and vocabulary padding.

    Args:
        keymap: names of the model.
        params: all parameters of the encoder and of `heads`.
        config: architecture; the vocabulary may be padded.
        heads: heads to convert.

    Raises:
        UserError: a parameter is missing, unexpected, misshapen or not finite, or two heads have one tensor name.
    """
    sizes, report, tensors = keymap.sizes, _MismatchReport(), Tensors()
    leaves = flatten_tree(params)
    for entry in keymap.select(heads):
        arrays = []
        for path in entry.paths:
            if path not in leaves:
                report.add("missing", path)
                continue
            expected = entry.param_shape(sizes)
            array = _without_padding(np.asarray(leaves.pop(path), np.float32), expected, config)
            if report.check(path, array, expected):
                arrays.append(array)
        if len(arrays) < len(entry.paths):
            continue
        transform = TRANSFORMS[entry.transform]
        for index, name in entry.tensor_names(sizes):
            if name in tensors:
                raise UserError(
                    f"parameters: two heads of {', '.join(heads)} have the name {name}; a file can hold one"
                )
            tensors[name] = np.ascontiguousarray(transform.join([array[index] for array in arrays], sizes))
    for path in leaves:
        report.add("unexpected", path)
    report.raise_if_any("parameters")
    return tensors


def tensors_to_params(
    keymap: KeyMap, tensors: Mapping[str, np.ndarray], heads: tuple[str, ...], where: str = "tensors"
) -> Params:
    """Converts tensors to parameters: float32, at the true vocabulary size.

    Args:
        keymap: names of the model.
        tensors: what `KeyMap.canonicalize` returned.
        heads: heads to convert.
        where: what to name in errors.

    Raises:
        UserError: names the tensors that are missing, unexpected, misshapen or not finite.
    """
    sizes, report, remaining = keymap.sizes, _MismatchReport(), dict(tensors)
    leaves: dict[str, np.ndarray] = {}
    for entry in keymap.select(heads):
        if entry.num_tensors(sizes) > len(tensors):  # a config may claim a billion layers
            report.add("missing", f"{entry.tensor} for {entry.num_tensors(sizes)} indices")
            continue
        layers = []
        for _, name in entry.tensor_names(sizes):
            if name not in remaining:
                if entry.constant is None:
                    report.add("missing", name)
                continue
            array = remaining.pop(name)
            if report.check(name, array, entry.tensor_shape(sizes)):
                array = array.astype(np.float32, copy=False)
                layers.append(TRANSFORMS[entry.transform].split(array, len(entry.paths), sizes))
        if len(layers) == entry.num_tensors(sizes):
            for path, arrays in zip(entry.paths, zip(*layers, strict=True), strict=True):
                leaves[path] = np.stack(arrays).reshape(entry.param_shape(sizes))
        elif layers and entry.constant is not None:
            report.add("in some layers only", entry.tensor)
    for name in remaining:
        report.add("unexpected", name)
    report.raise_if_any(where)
    for entry in keymap.select(heads):
        for path in entry.paths if entry.constant is not None else ():
            leaves.setdefault(path, np.full(entry.param_shape(sizes), entry.constant, np.float32))
    return unflatten_tree(leaves)


def _without_padding(array: np.ndarray, expected: tuple[int, ...], config: EncoderConfig) -> np.ndarray:
    """Cuts the axis that has the length of the padded vocabulary to the true one."""
    if array.ndim != len(expected) or config.table_size == config.vocab_size:
        return array
    padding = (config.table_size, config.vocab_size)
    padded = [sizes == padding for sizes in zip(array.shape, expected, strict=True)]
    return array[tuple(slice(config.vocab_size) if cut else slice(None) for cut in padded)]
