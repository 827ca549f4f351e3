"""Exports a checkpoint as a folder that `transformers` loads, and verifies it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bertjax.config import inputs
from bertjax.config.model import float32_config
from bertjax.config.task import task_kind
from bertjax.data.sources import iter_documents
from bertjax.errors import UserError, named
from bertjax.experiment.config import read_objective
from bertjax.experiment.load import StoredRun, config_keys, exported_tokenizer, join_encoder_decoder
from bertjax.experiment.model_card_facts import model_facts
from bertjax.experiment.workdir import metrics_at
from bertjax.hf.encoder_decoder.folders import loader
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.export_plan import plan_export
from bertjax.hf.load import read_config_json
from bertjax.hf.model_card import auto_class_of, code_argument
from bertjax.hf.native_format import HEAD_BY_MODULE
from bertjax.hf.onnx_folder import Measure, Score, save_onnx
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import GRAPH
from bertjax.hf.save import save_pretrained
from bertjax.hf.sentence_transformers import Pooling, drop_heads, save_sentence_transformers
from bertjax.types import Params

_SAMPLED_LINES, _SAMPLED_CHARS = 200, 20_000  # of all text, of a document


def export_run(
    run: StoredRun,
    workdir: Path,
    out: Path,
    overwrite: bool = True,
    pooling: Pooling | None = None,
    network: str | None = None,
    onnx: OnnxSettings | None = None,
    **storage: Any,
) -> SavedGraph | None:
    """Exports parameters and tokenizer, verifies the folder, and prints how to load it; returns facts of a graph.

    Args:
        run: the run, whose meta has the numbers of `tokens` and, in a task, `examples` for the model card.
        workdir: work directory, whose metrics the model card shows.
        out: folder to write.
        overwrite: replaces an earlier export.
        pooling: writes a folder of sentence-transformers with this pooling.
        network: name of the network to export; the main one by default.
        onnx: writes a graph for serving instead of weights.
        **storage: `dtype` and `max_shard_bytes` of `save_pretrained`.

    Raises:
        UserError: an encoder-decoder has `pooling`; or as `save_pretrained`.
    """
    # The metrics of the last step are not those of averaged weights.
    metrics = {} if len(run.steps) > 1 else metrics_at(workdir, run.step)
    model = _exported_model(run, network)
    labels = model.config.labels if isinstance(model, PretrainedModel) else ()
    card = model_facts(run, metrics, labels)
    origin = f"step {run.step}"
    if len(run.steps) > 1:
        origin = f"the average of steps {', '.join(map(str, run.steps))}"
        card["steps"] = f"{run.step} ({origin})"
    storage |= {"card": card, "overwrite": overwrite}
    if onnx is not None:
        tokenizer = exported_tokenizer(run.experiment, run.tokenizer)
        if isinstance(model, PretrainedModel):
            files = tokenizer.huggingface_files(model.config.max_position_embeddings)
            model = dataclasses.replace(model, tokenizer_files=files)
        return _save_graph(out, model, pooling, onnx, f"{origin} ", **storage)
    if isinstance(model, PretrainedModel):
        texts = [] if run.experiment.objective.is_finetuning else _sample_lines(run.experiment.cfg)
        storage |= {"sample_texts": texts, "tokenizer": exported_tokenizer(run.experiment, run.tokenizer)}
        hint = _save_network(out, model, pooling, **storage)
    else:
        _require_one_network(pooling)
        hint = _save_encoder_decoder(out, model, **storage)
    print(f"exported {origin} to {out}, read back and compared; load it with")
    print(hint)
    return None


def _exported_model(run: StoredRun, name: str | None) -> PretrainedModel | PretrainedEncoderDecoder:
    """Returns the network of this name, by default the main model, an encoder-decoder with its tokenizer."""
    objective = run.experiment.objective
    if objective.encoder_decoder is not None and name is None:
        return join_encoder_decoder(run, objective.encoder_decoder, run.params)
    alone = [each for each, network in objective.networks.items() if network.stands_alone]
    name = alone[0] if name is None else name
    if name not in alone:
        raise UserError(f"this run has no network {name!r} that stands alone; there is {' and '.join(alone)}")
    config, heads = objective.networks[name]
    params = _calibrated(objective.network_params(run.params, name), run.experiment.cfg)
    return PretrainedModel(float32_config(config), params, heads, config_keys=config_keys(run.experiment))


def _calibrated(params: Params, cfg: ConfigDict) -> Params:
    """Divides the last layer of a task's head by the temperature that was fitted."""
    if not read_objective(cfg).is_finetuning or (kind := task_kind(cfg)).temperature == 1.0:
        return params
    (name,) = (module for module, head in HEAD_BY_MODULE.items() if head == kind.head)
    head = params[name]
    output = {key: leaf / np.float32(kind.temperature) for key, leaf in head["output"].items()}
    return {**params, name: {**head, "output": output}}


class OnnxSettings(NamedTuple):
    """Version of ONNX's operators, and what scores a model and its graph on held-out examples; None: the default."""

    opset: int | None = None
    measure: Measure | None = None


class SavedGraph(NamedTuple):
    """Bytes of a graph, the largest difference of its outputs, and scores of held-out examples."""

    size: int
    difference: float
    scores: Sequence[Score]


def _save_graph(
    out: Path, model: Any, pooling: Pooling | None, onnx: OnnxSettings, origin: str, **storage: Any
) -> SavedGraph:
    """Writes the graph of a model, and prints how much it differs."""
    if not isinstance(model, PretrainedModel):
        raise UserError(
            f"an encoder-decoder is served as two graphs with a cache; export without {named('onnx')} and convert the "
            f"folder with optimum-cli, or export its encoder alone with {named('network', 'encoder')}"
        )
    storage = {name: value for name, value in storage.items() if name != "max_shard_bytes"}
    deviation, scores = save_onnx(out, model, pooling=pooling, **onnx._asdict(), **storage)
    print(f"exported {origin}to {out / GRAPH}, run in onnxruntime and compared (at most {deviation.largest:.1e})")
    size = sum(path.stat().st_size for path in out.glob(f"{GRAPH}*"))
    print(f"    {size / 1e6:.1f} MB, {storage['dtype']}; README.md shows how to run it")
    for score in scores:
        print(f"    {score.name}: {score.before:.4f} in bertjax, {score.after:.4f} in onnxruntime")
    return SavedGraph(size, deviation.largest, scores)


def export_model(
    model: PretrainedModel | PretrainedEncoderDecoder,
    out: Path,
    pooling: Pooling | None = None,
    onnx: OnnxSettings | None = None,
    **storage: Any,
) -> SavedGraph | None:
    """Writes a loaded model again, verifies the folder, and prints how to load it; returns facts of a graph.

    Args:
        model: the model.
        out: folder to write.
        pooling: writes a folder of sentence-transformers with this pooling.
        onnx: writes a graph for serving instead of weights.
        **storage: `overwrite`, `dtype` and `max_shard_bytes` of `save_pretrained`.

    Raises:
        UserError: an encoder-decoder has `pooling`; or as `save_pretrained`.
    """
    if onnx is not None:
        return _save_graph(out, model, pooling, onnx, "", **storage)
    if isinstance(model, PretrainedModel):
        if pooling is None:
            model.save_pretrained(out, **storage)
        else:
            save_sentence_transformers(out, model, pooling, **storage)
        hint = _how_to_load(out, model, pooling)
    else:
        _require_one_network(pooling)
        hint = _save_encoder_decoder(out, model, **storage)
    print(f"exported to {out}, read back and compared; load it with")
    print(hint)
    return None


def _require_one_network(pooling: Pooling | None) -> None:
    if pooling is not None:
        raise UserError(
            f"a folder of sentence-transformers holds one network; export the encoder with {named('network', 'model')}"
        )


def _save_network(out: Path, model: PretrainedModel, pooling: Pooling | None, **arguments: Any) -> str:
    """Writes the folder of a single network; returns how to load it."""
    if pooling is None:
        keys = model.config_keys
        save_pretrained(out, model.params, model.config, heads=model.heads, config_keys=keys, **arguments)
    else:
        save_sentence_transformers(out, model, pooling, **arguments)
    return _how_to_load(out, model, pooling)


def _how_to_load(out: Path, model: PretrainedModel, pooling: Pooling | None) -> str:
    plan = plan_export(model.config, model.heads if pooling is None else drop_heads(model).heads)
    load = "sentence_transformers.SentenceTransformer"
    if pooling is None:
        load = f"transformers.{auto_class_of(plan)}.from_pretrained"
    load = "bertjax.load_pretrained" if plan.is_private else load
    return "\n".join(filter(None, [f"    {load}({str(out)!r}{code_argument(plan)})", plan.limitation]))


def _save_encoder_decoder(out: Path, model: PretrainedEncoderDecoder, **arguments: Any) -> str:
    """Writes the folder of an encoder-decoder; returns how to load it."""
    model.save_pretrained(out, **arguments)
    library, name, argument = loader(read_config_json(out)[0])
    return f"    {library}.{name}{'.from_pretrained' * (library == 'transformers')}({str(out)!r}{argument})"


def _sample_lines(cfg: ConfigDict) -> list[str]:
    """Returns the first lines of local training text, to compare tokenizers; none if the files are gone."""
    with contextlib.suppress(UserError):
        sources = [source for source in inputs.all_sources(cfg) if source.spec.is_file or source.kind == "builtin"]
        documents = (document for source in sources for document in iter_documents(source, cfg.data.encoding_errors))
        lines = (line for document in documents for line in document[:_SAMPLED_CHARS].split("\n") if line.strip())
        return list(itertools.islice(lines, _SAMPLED_LINES))
    return []
