"""Writes a folder for serving: `model.onnx`, which onnxruntime runs alone, with config, tokenizer and model card.

The graph is run in onnxruntime and compared with the model in memory before the folder appears.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.errors import UserError, named
from bertjax.hf.export_plan import plan_export
from bertjax.hf.forward import require_readable
from bertjax.hf.model_card import render_model_card
from bertjax.hf.onnx_graph import (
    ONNX_DTYPES,
    OPSET,
    OPSETS,
    GraphSignature,
    OnnxModel,
    expected_outputs,
    require_exportable,
    require_onnx,
    sample_batches,
    write_graph,
)
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import CONFIG, GRAPH
from bertjax.hf.save import ExportError, TokenizerSource, require_free, round_params, tokenizer_files
from bertjax.hf.sentence_transformers import Pooling, drop_heads, library_files
from bertjax.io.atomic import atomic_folder
from bertjax.io.tree_paths import flatten_tree

# Largest error that is rounding: of float32 a difference, of fewer bits a part of the length of all outputs.
_LIMITS = {"float32": 1e-4, "float16": 0.02, "int8": 0.5}


class Score(NamedTuple):
    """A metric of held-out examples, by the model in memory and by its graph."""

    name: str
    before: float
    after: float


class Deviation(NamedTuple):
    """Difference between the outputs of a graph and those of the model: the largest one, and that of all outputs."""

    largest: float
    relative: float
    inputs: int


Measure = Callable[[PretrainedModel, OnnxModel], Sequence[Score]]


def check_onnx_arguments(dtype: str, opset: int | None) -> None:
    """Raises `UserError` for a type or an opset that no graph has, and where a package is missing."""
    if dtype not in ONNX_DTYPES:
        raise UserError(
            f"{named('dtype', dtype)} is not one of {named('onnx', True)}: {', '.join(ONNX_DTYPES)} "
            "(onnxruntime has no kernels of bfloat16 for processors)"
        )
    if opset is not None and opset not in OPSETS:
        raise UserError(
            f"{named('opset', opset)} is none that torch.onnx writes: {OPSETS[0]} to {OPSETS[-1]} (default {OPSET})"
        )
    require_onnx()


def save_onnx(
    folder: str | os.PathLike[str],
    model: PretrainedModel,
    *,
    pooling: Pooling | None = None,
    tokenizer: TokenizerSource | None = None,
    card: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dtype: str = "float32",
    opset: int | None = None,
    measure: Measure | None = None,
) -> tuple[Deviation, Sequence[Score]]:
    """Writes model.onnx, config.json, the tokenizer's files and README.md.

    Args:
        folder: where to write; a new or empty folder, or with `overwrite` an earlier export.
        model: the model.
        pooling: makes it a sentence encoder, whose graph pools; heads are left out.
        tokenizer: replaces the model's own tokenizer files.
        card: facts for README.md; see `render_model_card`.
        overwrite: replace an earlier export.
        dtype: float32, float16 or int8 (weights and matmuls, quantized dynamically).
        opset: version of ONNX's operators.
        measure: scores model and graph on held-out examples, for README.md.

    Returns:
        How much the outputs differ, and the scores.

    Raises:
        UserError: the folder holds something else, the model has no graph, or the disk refused.
        ExportError: onnxruntime computes something else than bertjax.
    """
    check_onnx_arguments(dtype, opset)
    folder = Path(folder).absolute()
    require_free(folder, overwrite)
    pooled = pooling
    if pooling is not None:
        model = drop_heads(model)
        require_readable(model.config, pooling.max_length, "max_length")
        pooled = dataclasses.replace(pooling, max_length=pooling.max_length or model.config.max_position_embeddings)
    require_exportable(model.config, model.heads, pooled)
    if dtype == "float16":
        round_params(model.params, dtype)
    plan = plan_export(model.config, model.heads, "float32", model.config_keys)
    values = {name: value for name, value in plan.config_json.items() if name != "auto_map"}
    files = {CONFIG: (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()}
    files |= tokenizer_files(tokenizer or model.tokenizer_files, model.config)
    if pooled is not None:
        files |= dict(model.module_files) or library_files(pooled, model.config.hidden_size)
        card = {**(card or {}), "sentence_vectors": f"{pooled}, of at most {pooled.max_length} tokens"}
    opset = opset or OPSET
    scores: tuple[Score, ...] = ()
    try:
        with atomic_folder(folder) as temporary:
            signature = write_graph(temporary / GRAPH, model, pooled, dtype, opset)
            graph = OnnxModel(temporary / GRAPH, signature)
            deviation = compare_graph(model, graph, dtype)
            scores = tuple(measure(model, graph)) if measure is not None else ()
            size = sum(path.stat().st_size for path in temporary.glob(f"{GRAPH}*"))
            num_params = sum(int(np.size(leaf)) for leaf in flatten_tree(model.params).values())
            facts = describe_graph(signature, dtype, opset, size, deviation, scores)
            files["README.md"] = render_model_card(plan, num_params, {**(card or {}), "onnx": facts}).encode()
            for name, content in files.items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write the export to {folder}: {error.strerror or error}") from error
    return deviation, scores


def compare_graph(model: PretrainedModel, graph: OnnxModel, dtype: str) -> Deviation:
    """Compares the outputs for inputs of several lengths, with padding, whose own outputs nobody reads.

    Raises:
        ExportError: they differ by more than rounding.
    """
    squares, largest, scale, count = np.zeros(2), 0.0, 1.0, 0
    for batch in sample_batches(model.config, model.heads):
        actual, is_real = graph(**batch), batch["attention_mask"] == 1
        for name, expected in expected_outputs(model, graph.signature, batch).items():
            theirs = actual[name]
            if theirs.shape != expected.shape or not np.isfinite(theirs).all():
                raise ExportError(f"onnxruntime's {name} has shape {list(theirs.shape)} or is not finite; try float32")
            if expected.shape[:2] == is_real.shape and name != "sentence_embedding":
                expected, theirs = expected[is_real], theirs[is_real]
            difference = np.abs(theirs - expected)
            squares += np.square(difference, dtype=np.float64).sum(), np.square(expected, dtype=np.float64).sum()
            largest, scale = max(largest, float(difference.max())), max(scale, float(np.abs(expected).max()))
        count += len(is_real)
    relative = float(np.sqrt(squares[0] / max(squares[1], 1e-30)))
    error = largest / scale if dtype == "float32" else relative
    if not error <= _LIMITS[dtype]:
        raise ExportError(
            f"onnxruntime's outputs in {dtype} differ from bertjax's by {largest:.2g} ({relative:.1%} of their length)"
        )
    return Deviation(largest, relative, count)


def describe_graph(
    signature: GraphSignature, dtype: str, opset: int, size: int, deviation: Deviation, scores: Sequence[Score]
) -> dict[str, Any]:
    """Returns what README.md says of a graph."""
    return {
        "inputs": signature.inputs,
        "outputs": signature.outputs,
        "rows": [
            ("Numbers", dtype + ", quantized dynamically" * (dtype == "int8")),
            ("Size", f"{size / 1e6:.1f} MB"),
            ("Opset", opset),
            (
                f"Difference from float32 in bertjax ({deviation.inputs} random inputs)",
                f"at most {deviation.largest:.1e}, {deviation.relative:.1e} of the length of the outputs",
            ),
            *((f"{each.name}: float32, this file", f"{each.before:.4f}, {each.after:.4f}") for each in scores),
        ],
    }
