"""Exports of a checkpoint, or of a model that is read and written again with other files."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from bertjax.commands.arguments import File, Flag, Folder, Model, Run, as_list, workdir_of
from bertjax.commands.eval_sts import cosines
from bertjax.commands.predict import SETTINGS, first_record, make_predictor, require_files
from bertjax.commands.signatures import command
from bertjax.config.task import TaskConfig
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment.export import OnnxSettings, export_model, export_run
from bertjax.experiment.load import load_run
from bertjax.experiment.open_model import load_pretrained, open_model, trained_task
from bertjax.hf import push
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.forward import max_input_length
from bertjax.hf.onnx_folder import Score, check_onnx_arguments
from bertjax.hf.onnx_graph import OnnxModel, expected_outputs
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import Pooling
from bertjax.inference.mlm_inference import choose_mask_mode
from bertjax.inference.predict import Predictor, infer_task_kind
from bertjax.inference.predict_inputs import PredictInputs, read_inputs
from bertjax.inference.text_batches import TextEncoder, TokenizedTexts
from bertjax.inference.text_files import read_texts
from bertjax.io.output import parse_size, require_output_folder
from bertjax.io.staging import local_copy, output_path
from bertjax.report.analyses import SMALLER
from bertjax.report.render import store_analysis
from bertjax.types import Batch


@command
def export(
    run: Run | None = None,
    out: Annotated[Folder | None, Flag(type=Path, metavar="FOLDER", required=True)] = None,
    *,
    model: Model | None = None,
    step: int | None = None,
    average_last: Annotated[int, Flag(type=int, metavar="K")] = 1,
    network: str | None = None,
    dtype: Literal["float32", "bfloat16", "float16", "int8"] = "float32",
    max_shard_size: Annotated[str, Flag(metavar="SIZE")] = "5GB",
    overwrite: bool = False,
    sentence_transformers: bool = False,
    pooling: Literal["mean", "cls"] | None = None,
    max_length: int | None = None,
    push_to_hub: Annotated[str | None, Flag(metavar="OWNER/NAME")] = None,
    public: bool = False,
    onnx: bool = False,
    opset: int | None = None,
    eval: Annotated[Sequence[Any] | None, Flag("--eval", type=File, metavar="FILE", nargs="+")] = None,
) -> Path:
    """Write a checkpoint as a Hugging Face folder, and verify it.

    Args:
        out: folder to write
        model: instead of a run: any model, to write it with another type or for sentence-transformers
        step: step of the checkpoint (default: the newest)
        average_last: average the weights of the last K checkpoints
        network: network to export where there are several, such as generator (default: the main one)
        dtype: type of the weights; int8: with onnx
        max_shard_size: size of a file of weights
        overwrite: replace an earlier export
        sentence_transformers: write a sentence-transformers folder
        pooling: that of its sentence vectors (default mean)
        max_length: its maximum of tokens per text (default: the model's)
        push_to_hub: upload the export to the Hugging Face Hub, private
        public: make a new repository public
        onnx: write model.onnx, which onnxruntime runs alone, instead of weights
        opset: version of its operators (default 20)
        eval: files whose scores its model card compares: labeled examples of a task, otherwise texts, one per line

    Returns:
        The folder.

    Raises:
        UserError: checkpoint or network are missing, or folder or repository exist already.

    Example:
        bertjax export --workdir runs/quickstart --out exported --dtype bfloat16
    """
    require_at_least(1, average_last=average_last)
    if (run is None) == (model is None):
        raise UserError(f"give a run with {named('workdir')}, or any other model with {named('model')}")
    if model is not None and (step is not None or average_last > 1 or network is not None):
        raise UserError(f"{named('step')}, {named('average_last')} and {named('network')} are those of a run")
    if (pooling is not None or max_length is not None) and not sentence_transformers:
        raise UserError(f"{named('pooling')} and {named('max_length')} need {named('sentence_transformers', True)}")
    if (opset is not None or eval is not None) and not onnx:
        raise UserError(f"{named('opset')} and {named('eval')} need {named('onnx', True)}")
    if onnx:
        check_onnx_arguments(dtype, opset)
        require_files(eval_files := [os.fspath(each) for each in as_list("eval", eval or [])], "eval")
    elif dtype == "int8":
        raise UserError(f"{named('dtype', dtype)} needs {named('onnx', True)}: transformers has no such weights")
    if public and push_to_hub is None:
        raise UserError(f"{named('public')} needs {named('push_to_hub')} OWNER/NAME")
    if out is None:
        raise UserError(f"{named('out')} is missing: the folder to write")
    require_output_folder(out)
    folder = Path(out).expanduser()
    if push_to_hub is not None:
        push.check_repository(push_to_hub, overwrite=overwrite)
    storage: dict[str, Any] = {
        "overwrite": overwrite,
        "pooling": Pooling(pooling or "mean", max_length=max_length) if sentence_transformers else None,
        "dtype": dtype,
        "max_shard_bytes": parse_size(named("max_shard_size"), max_shard_size),
    }
    if onnx:
        source = run if model is None else model
        is_loaded = isinstance(source, PretrainedModel | PretrainedEncoderDecoder)
        trained = None if is_loaded else trained_task(workdir_of(source))
        measure = functools.partial(_measure, eval_files, trained) if eval_files else None
        storage["onnx"] = OnnxSettings(opset, measure)
    with output_path(folder, overwrite) as local:
        if model is None:
            workdir = workdir_of(run)
            stored = load_run(workdir, step, average_last)
            message = f"Step {stored.step}, exported by bertjax"
            graph = export_run(stored, workdir, local, network=network, **storage)
        else:
            message = "Exported by bertjax"
            loaded = model if isinstance(model, PretrainedModel | PretrainedEncoderDecoder) else load_pretrained(model)
            if onnx and isinstance(loaded, PretrainedModel) and loaded.module_files:
                if sentence_transformers:
                    loaded = dataclasses.replace(loaded, module_files={})
                else:
                    storage["pooling"] = open_model(loaded, pooled=True).pooling
            graph = export_model(loaded, local, **storage)
        if push_to_hub is not None:
            address = push.push_to_hub(local, push_to_hub, private=not public, overwrite=overwrite, message=message)
            print(f"uploaded to {address}")
    if graph is not None:
        scores = [*graph.scores, Score("largest difference of the outputs", 0.0, graph.difference)]
        form = {"size": f"{graph.size / 1e6:.1f} MB", "scores": scores}
        store_analysis(run if model is None else model, SMALLER, {f"ONNX, {dtype}": form}, merge=True)
    return local_copy(folder)


def _measure(files: list[str], trained: TaskConfig | None, model: PretrainedModel, graph: OnnxModel) -> list[Score]:
    """Scores a model and its graph on held-out examples."""
    opened = open_model(model)._replace(trained=trained)
    if graph.signature.pooling is None and "mlm_logits" not in graph.signature.fields:
        kind = infer_task_kind(model, trained.kind if trained is not None else None)
        predictor = make_predictor(opened, kind, dict.fromkeys(SETTINGS), first_record(files))
        assert isinstance(predictor, Predictor)
        (inputs,) = read_inputs(predictor.config, files, True, None)
        return score_task(predictor, graph, inputs)
    texts = [text for file in files for _, text in read_texts(file) if text.strip()]
    score = score_masked if graph.signature.pooling is None else score_vectors
    return score(model, graph, opened.tokenizer, texts)


def show(folder: Path, *, format: Literal["safetensors"] = "safetensors") -> None:
    """Prints nothing: the export says what it wrote.

    Args:
        format: file format of the weights; pickle is not offered, because it can execute code
    """


_MASKED = 0.15
_TEXTS, _LENGTH = 8, 128  # of a batch, and tokens of a text: logits of a large vocabulary fill the memory


def score_task(predictor: Predictor, graph: OnnxModel, inputs: PredictInputs) -> list[Score]:
    """Returns the metrics of labeled examples by both.

    Args:
        predictor: the model.
        graph: its graph.
        inputs: examples with their gold labels.
    """
    other = predictor.with_outputs(lambda batch: _head_outputs(graph, predictor.summary_is_last, batch))
    before, after = (each.score(inputs, each(inputs)).metrics for each in (predictor, other))
    pairs = {name: (before[name], after[name]) for name in before if name in after}
    return [Score(name, *map(float, pair)) for name, pair in pairs.items() if np.isfinite(pair).all()]


def _head_outputs(graph: OnnxModel, summary_is_last: bool, batch: Batch) -> np.ndarray:
    """Returns what `TaskObjective.scores` does, for windows in a sequence each."""
    ids, mask, types = (np.asarray(batch[name]) for name in ("input_ids", "segment_ids", "token_type_ids"))
    mask = (mask > 0).astype(np.int64)
    if summary_is_last:  # padding comes first, as in `transformers`
        order = np.argsort(mask, axis=1, kind="stable")
        rolled = (np.take_along_axis(each, order, axis=1) for each in (ids, mask, types))
        return graph(*rolled)["logits"][:, None]
    outputs = graph(ids, mask, types)
    if "start_logits" in outputs:
        return np.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
    logits = outputs["logits"]
    return logits if logits.ndim == 3 else logits[:, None]


def score_masked(model: PretrainedModel, graph: OnnxModel, tokenizer: Tokenizer, texts: list[str]) -> list[Score]:
    """Returns loss and accuracy of masked tokens of texts, the same ones for both.

    Args:
        model: a masked language model.
        graph: its graph.
        tokenizer: its tokenizer.
        texts: held-out texts.
    """
    mask_id = choose_mask_mode(model, tokenizer.mask_id, two_streams=False).mask_id
    encoded, random = _encode(model, tokenizer, texts), np.random.default_rng(0)
    name = graph.signature.outputs[graph.signature.fields.index("mlm_logits")]
    sums, count = np.zeros((2, 2)), 0
    for first in range(0, len(encoded), _TEXTS):
        members = np.arange(first, min(first + _TEXTS, len(encoded)))
        length = int(encoded.lengths[members].max())
        batch = encoded.token_batch(members, length, model.config.pad_token_id)._asdict()
        is_text = encoded.padded(encoded.words, members, length, -1) >= 0
        masked = is_text & (random.random(is_text.shape) < _MASKED)
        gold = batch["input_ids"][masked]
        batch["input_ids"] = np.where(masked, mask_id, batch["input_ids"])
        count += len(gold)
        for row, outputs in zip(sums, (expected_outputs(model, graph.signature, batch), graph(**batch)), strict=True):
            logits = outputs[name][masked].astype(np.float64)
            logits -= logits.max(axis=-1, keepdims=True)
            of_gold = np.take_along_axis(logits, gold[:, None], axis=-1)[:, 0]
            row += (np.log(np.exp(logits).sum(-1)) - of_gold).sum(), (logits.argmax(-1) == gold).sum()
    if not count:
        raise UserError("the texts are too short to mask 15 % of their tokens; give more of them")
    values = sums / count
    return [Score(f"{what} of {count:,} masked tokens", *values[:, i]) for i, what in enumerate(("loss", "accuracy"))]


def score_vectors(model: PretrainedModel, graph: OnnxModel, tokenizer: Tokenizer, texts: list[str]) -> list[Score]:
    """Returns the mean cosine of the vectors of texts by both.

    Args:
        model: a sentence encoder without heads.
        graph: its graph.
        tokenizer: its tokenizer.
        texts: the texts.
    """
    pooling = graph.signature.pooling
    assert pooling is not None
    encoded = _encode(model, tokenizer, [pooling.prompt + text for text in texts], pooling.lowercase)
    similarities = []
    for first in range(0, len(encoded), _TEXTS):
        members = np.arange(first, min(first + _TEXTS, len(encoded)))
        length = int(encoded.lengths[members].max())
        batch = encoded.token_batch(members, length, model.config.pad_token_id)._asdict()
        vectors = [
            each["sentence_embedding"] for each in (expected_outputs(model, graph.signature, batch), graph(**batch))
        ]
        similarities.append(cosines(*vectors))
    return [
        Score(f"mean cosine of the vectors of {len(encoded):,} texts", 1.0, float(np.concatenate(similarities).mean()))
    ]


def _encode(model: PretrainedModel, tokenizer: Tokenizer, texts: list[str], lowercase: bool = False) -> TokenizedTexts:
    limit = max_input_length(model.config, model.heads)
    encoded = TextEncoder(tokenizer, min(limit or _LENGTH, _LENGTH), lowercase)(texts)
    if not len(encoded) or not encoded.lengths.min():
        raise UserError("a text without tokens has no score; remove it")
    return encoded
