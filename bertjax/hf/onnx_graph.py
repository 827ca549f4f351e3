"""A model as an ONNX graph: `torch.onnx` traces the PyTorch code of the native format, which holds every mixture.

The graph reads `input_ids`, `attention_mask` and, where the model has token types, `token_type_ids`, int64 of any batch
size and length. Its outputs have the names of `transformers`, and of a sentence encoder those of sentence-transformers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config.model import EncoderConfig
from bertjax.errors import UserError, comma_list, named, one_line
from bertjax.hf.export_plan import plan_native
from bertjax.hf.forward import max_input_length
from bertjax.hf.load import ModelWeights
from bertjax.hf.sentence_transformers import Pooling, pool, scale_to_unit_length

ONNX_DTYPES = ("float32", "float16", "int8")
OPSETS = range(18, 24)
OPSET = 20
_PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")
_EXTERNAL_BYTES = 1_800_000_000  # a file of protobuf holds 2 GiB at most
# Class -> names of its outputs in PyTorch and in the graph, field of `ModelOutput`, and the head that computes it.
_OUTPUTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "BertjaxModel": (("last_hidden_state", "last_hidden_state", ""), ("pooler_output", "pooler_output", "pooler")),
    "BertjaxForPreTraining": (
        ("prediction_logits", "mlm_logits", "mlm"),
        ("seq_relationship_logits", "pair_logits", "pair"),
        ("replaced_token_logits", "rtd_logits", "rtd"),
    ),
    "BertjaxForMaskedLM": (("logits", "mlm_logits", "mlm"),),
    "BertjaxForSequenceClassification": (("logits", "sequence_logits", "sequence_classification"),),
    "BertjaxForTokenClassification": (("logits", "token_logits", "token_classification"),),
    "BertjaxForQuestionAnswering": (
        ("start_logits", "start_logits", "question_answering"),
        ("end_logits", "end_logits", "question_answering"),
    ),
}
_SENTENCE_OUTPUTS = ("token_embeddings", "sentence_embedding")


def require_onnx() -> None:
    """Raises `UserError` where a package of the extra is missing."""
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"{named('onnx', True)} needs {package} ({one_line(error)}); pip install 'bertjax[onnx]'"
            ) from None


def require_exportable(config: EncoderConfig, heads: tuple[str, ...], pooling: Pooling | None) -> None:
    """Raises `UserError` for a model that has no graph, with the way that works."""
    if config.attention_class is not None:
        raise UserError(f"only bertjax runs model.attention_class={config.attention_class}; it has no ONNX graph")
    if config.causal and "sequence_classification" not in heads:
        raise UserError(
            "a decoder is served with its cache, which this graph would not have; export without "
            f"{named('onnx')} and convert the folder with optimum-cli or an engine such as vLLM"
        )
    if "multiple_choice" in heads:
        raise UserError(
            "a graph scores single texts, and this head compares several; export the folder without "
            f"{named('onnx', True)}, or convert it with optimum-cli"
        )
    if config.bi_data:
        raise UserError("bi_data reads half of a batch backwards, which no program that serves a model expects")
    if pooling is not None and (pooling.layers or not pooling.include_prompt):
        what = "modules after the pooling" if pooling.layers else "a prompt that is not pooled"
        raise UserError(f"a graph pools tokens, and cannot hold {what}; export without {named('onnx')}")


def input_names(config: EncoderConfig) -> list[str]:
    """Returns the names of the inputs of a model's graph."""
    has_types = config.type_vocab_size > 1 or config.relative_segments
    return ["input_ids", "attention_mask", *["token_type_ids"] * has_types]


@dataclasses.dataclass(frozen=True)
class GraphSignature:
    """Inputs and outputs of a graph; `fields` of `ModelOutput` belong to `outputs`, except for pooled vectors."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fields: tuple[str, ...]
    pooling: Pooling | None = None


def signature_of(config: EncoderConfig, heads: tuple[str, ...], pooling: Pooling | None) -> GraphSignature:
    """Returns the inputs and outputs that the graph of a model has."""
    inputs = tuple(input_names(config))
    if pooling is not None:
        return GraphSignature(inputs, _SENTENCE_OUTPUTS, ("last_hidden_state",), pooling)
    architecture = plan_native(config, heads).architecture
    rows = [row for row in _OUTPUTS[architecture] if not row[2] or row[2] in heads]
    if not rows:
        raise UserError(f"the heads of this model ({comma_list(heads)}) need more than a text, and have no graph")
    names = ["logits"] if len(rows) == 1 and architecture.endswith("PreTraining") else [name for name, *_ in rows]
    return GraphSignature(inputs, tuple(names), tuple(field for _, field, _ in rows))


def write_graph(
    path: Path, model: ModelWeights, pooling: Pooling | None = None, dtype: str = "float32", opset: int = OPSET
) -> GraphSignature:
    """Writes the graph of a model.

    Args:
        path: the file; weights of more than 1.8 GB lie in a file next to it.
        model: the model, float32.
        pooling: makes it a sentence encoder.
        dtype: one of `ONNX_DTYPES`; inputs and outputs keep their types.
        opset: version of ONNX's operators.

    Raises:
        UserError: the model has no graph, or torch cannot trace it.
    """
    require_exportable(model.config, model.heads, pooling)
    signature = signature_of(model.config, model.heads, pooling)
    module, num_bytes = _torch_module(model, signature)
    external = num_bytes > _EXTERNAL_BYTES
    whole = path if dtype == "float32" else path.with_name("float32.onnx")
    _trace(module, whole, signature, opset, external)
    if dtype == "float16":
        _to_float16(whole, path, external)
    if dtype == "int8":
        _to_int8(whole, path, external)
    for part in path.parent.glob("float32.onnx*"):
        part.unlink()
    return signature


def _torch_module(model: ModelWeights, signature: GraphSignature) -> tuple[Any, int]:
    """Returns the model in PyTorch, whose outputs are those of the graph, and the size of its weights in bytes."""
    import torch

    from bertjax.hf.remote_code import modeling_bertjax
    from bertjax.hf.remote_code.configuration_bertjax import BertjaxConfig

    config = dataclasses.replace(model.config, padded_vocab_size=None)
    plan = plan_native(config, model.heads)
    tensors, _ = plan.tensors(model.params)
    values: dict[str, Any] = {name: value for name, value in plan.config_json.items() if name != "auto_map"}
    values["attn_implementation"] = "eager"  # torch.onnx lacks fused attention
    native = getattr(modeling_bertjax, plan.architecture)
    module = native(BertjaxConfig(**values)).eval()
    prefix = "encoder." if plan.architecture == "BertjaxModel" else ""
    state = {name.removeprefix(prefix): torch.from_numpy(np.array(array)) for name, array in tensors.items()}
    missing = set(module.load_state_dict(state, strict=False).missing_keys)
    unused = {"mlm_head"} if "mlm" not in model.heads else {"decoder" if "mlm_head.decoder.weight" in missing else ""}
    if strange := [name for name in missing if name.split(".")[0] not in unused and "decoder.weight" not in name]:
        raise AssertionError(f"the PyTorch model has {sorted(strange)}, which bertjax does not")
    rows = _OUTPUTS[plan.architecture]
    names = [row[0] for row in rows if row[1] in signature.fields]

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            named_inputs = dict(zip(signature.inputs, inputs, strict=True))
            out = self.model(**named_inputs)
            if signature.pooling is None:
                return tuple(out[name] for name in names)
            hidden = out.last_hidden_state
            return hidden, pool_in_torch(hidden, named_inputs["attention_mask"], signature.pooling)

    return Graph().eval(), sum(array.nbytes for array in tensors.values())


def pool_in_torch(hidden: Any, mask: Any, pooling: Pooling) -> Any:
    """Pools hidden states as `sentence_transformers.pool` does, in PyTorch."""
    import torch

    counts = (mask > 0)[:, :, None]
    real, order = counts.to(hidden.dtype), mask.cumsum(1)[:, :, None].to(hidden.dtype)
    index = torch.arange(mask.shape[1], device=mask.device)[None]
    first = torch.where(mask > 0, index, mask.shape[1] - 1).amin(1)[:, None, None].expand(-1, 1, hidden.shape[-1])
    last = torch.where(mask > 0, index, 0).amax(1)[:, None, None].expand(-1, 1, hidden.shape[-1])
    total = real.sum(1)
    results = {
        "cls": lambda: hidden.gather(1, first)[:, 0],
        "lasttoken": lambda: hidden.gather(1, last)[:, 0],
        "max": lambda: torch.where(counts, hidden, -torch.inf).amax(1),
        "mean": lambda: (hidden * real).sum(1) / total.clamp(min=1.0),
        "mean_sqrt_len_tokens": lambda: (hidden * real).sum(1) / total.clamp(min=1.0).sqrt(),
        "weightedmean": lambda: (hidden * real * order).sum(1) / (real * order).sum(1).clamp(min=1.0),
    }
    vectors = torch.cat([results[each]() for each in pooling.mode.split("+")], dim=-1)
    if pooling.normalize:
        vectors = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return vectors if pooling.truncate_dim is None else vectors[:, : pooling.truncate_dim]


def _trace(module: Any, path: Path, signature: GraphSignature, opset: int, external: bool) -> None:
    import torch

    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    example = {name: torch.ones(2, 5, dtype=torch.long) for name in signature.inputs}
    example["token_type_ids"] = torch.zeros(2, 5, dtype=torch.long)
    try:
        with _quietly():
            program = torch.onnx.export(
                module,
                tuple(example[name] for name in signature.inputs),
                input_names=list(signature.inputs),
                output_names=list(signature.outputs),
                dynamic_shapes={"inputs": tuple({0: batch, 1: length} for _ in signature.inputs)},
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            graph: Any = program.model.graph
            for part in (graph, *graph.all_nodes()):  # traces with the paths of this machine
                part.metadata_props.clear()
            program.save(str(path), external_data=external)
    except torch.onnx.OnnxExporterError as error:
        raise UserError(f"torch.onnx cannot trace this model: {one_line(error)[:300]}") from None


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keeps the remarks of exporter and quantizer, which concern neither model nor user, off the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _to_float16(source: Path, path: Path, external: bool) -> None:
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quietly():
        half = convert_float_to_float16(onnx.load(source), keep_io_types=True, disable_shape_infer=external)
        onnx.save(half, path, save_as_external_data=external, location=f"{path.name}.data" if external else None)


def _to_int8(source: Path, path: Path, external: bool) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quietly():
        # reduce_range: sums of products of eight bits overflow the accumulators of processors without VNNI.
        quantize_dynamic(
            source,
            path,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=external,
        )


class OnnxModel:
    """A graph in onnxruntime, on the CPU.

    Args:
        path: the file.
        signature: its inputs and outputs.
    """

    def __init__(self, path: Path, signature: GraphSignature) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has errors of many kinds
            raise UserError(f"onnxruntime cannot load the graph: {one_line(error)[:300]}") from None
        self.signature = signature

    def __call__(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> dict[str, np.ndarray]:
        """Returns the outputs by their names."""
        ids = np.asarray(input_ids, np.int64)
        types = np.zeros_like(ids) if token_type_ids is None else np.asarray(token_type_ids, np.int64)
        values = {"input_ids": ids, "attention_mask": np.asarray(attention_mask, np.int64), "token_type_ids": types}
        outputs = self._session.run(None, {name: values[name] for name in self.signature.inputs})
        return dict(zip(self.signature.outputs, outputs, strict=True))


def expected_outputs(model: Any, signature: GraphSignature, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns what the graph of a model should compute, by bertjax's forward pass.

    Args:
        model: a `PretrainedModel`.
        signature: the graph.
        batch: inputs by name.
    """
    out = model(batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
    pooling = signature.pooling
    if pooling is None:
        pairs = zip(signature.outputs, signature.fields, strict=True)
        return {name: np.asarray(getattr(out, field)) for name, field in pairs}
    hidden = out.last_hidden_state
    vectors = np.asarray(pool(hidden, np.asarray(batch["attention_mask"], np.int32), pooling.mode))
    vectors = scale_to_unit_length(vectors) if pooling.normalize else vectors
    return dict(zip(_SENTENCE_OUTPUTS, (np.asarray(hidden), vectors[:, : pooling.truncate_dim]), strict=True))


def sample_batches(config: EncoderConfig, heads: tuple[str, ...]) -> Iterator[dict[str, np.ndarray]]:
    """Yields inputs of several shapes, with padding: a token alone, a few texts, one that is long."""
    limit = max_input_length(config, heads) or 64
    draw = np.random.default_rng(0).integers
    for batch_size, length in ((1, 1), (3, min(17, limit)), (5, min(64, limit)), (40, min(24, limit))):
        lengths = draw(1, length + 1, (batch_size, 1))
        lengths[0] = length
        mask = (np.arange(length)[None] < lengths).astype(np.int64)
        ids = draw(0, config.vocab_size, (batch_size, length))
        ids = np.where((mask == 1) & (ids != config.pad_token_id), ids, config.pad_token_id * (1 - mask))
        types = draw(0, config.type_vocab_size or 2, (batch_size, length)) * mask
        yield {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
