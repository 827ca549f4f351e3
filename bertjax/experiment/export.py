"""Exports a checkpoint as a folder that `transformers` loads, and verifies it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bertjax.config import parse
from bertjax.config.model import float32_config
from bertjax.data.sources import iter_documents
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.load import join_towers, load_run
from bertjax.experiment.model_card_facts import model_facts
from bertjax.experiment.workdir import metrics_at
from bertjax.hf.encoder_decoder.folders import loader
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.export_plan import plan_export
from bertjax.hf.load import read_config_json
from bertjax.hf.model_card import auto_class_of, code_argument
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.push import check_repository, push_to_hub
from bertjax.hf.save import save_pretrained
from bertjax.hf.sentence_transformers import Pooling, drop_heads, save_sentence_transformers
from bertjax.types import Params

_SAMPLED_LINES, _SAMPLED_CHARS = 200, 20_000  # of all text, of a document


class Upload(NamedTuple):
    """Repository on the Hugging Face Hub; a new one is private unless `public`."""

    repo: str
    public: bool = False


def export(
    workdir: Path,
    out: Path,
    step: int | None = None,
    overwrite: bool = False,
    pooling: Pooling | None = None,
    upload: Upload | None = None,
    average_last: int = 1,
    network: str | None = None,
    **storage: Any,
) -> None:
    """Exports a checkpoint of a run, and uploads it with `upload`.

    Args:
        workdir: work directory of the run.
        out: folder to write.
        step: step of the checkpoint; the newest by default.
        overwrite: replaces an earlier export.
        pooling: writes a folder of sentence-transformers with this pooling.
        upload: repository to upload to.
        average_last: averages the weights of so many checkpoints.
        network: name of the network to export; the main one by default.
        **storage: `dtype` and `max_shard_bytes` of `save_pretrained`.

    Raises:
        UserError: checkpoint or network are missing, or `out` or the repository exists already.
    """
    if upload is not None:
        check_repository(upload.repo, overwrite=overwrite)
    run = load_run(workdir, step, average_last)
    export_params(
        run.experiment,
        run.tokenizer,
        run.params,
        run.step,
        run.meta["tokens"],
        workdir,
        out,
        overwrite=overwrite,
        pooling=pooling,
        averaged=run.steps,
        network=network,
        num_examples=run.meta.get("examples"),
        **storage,
    )
    if upload is not None:
        message = f"Step {run.step}, exported by bertjax"
        address = push_to_hub(out, upload.repo, private=not upload.public, overwrite=overwrite, message=message)
        print(f"uploaded to {address}")


def export_params(
    exp: build.Experiment,
    tokenizer: Tokenizer,
    params: Params,
    step: int,
    tokens: int,
    workdir: Path,
    out: Path,
    overwrite: bool = True,
    pooling: Pooling | None = None,
    averaged: Sequence[int] = (),
    network: str | None = None,
    num_examples: Mapping[str, int] | None = None,
    **storage: Any,
) -> None:
    """Exports parameters and tokenizer, verifies the folder, and prints how to load it.

    Args:
        exp: experiment of the run.
        tokenizer: its tokenizer.
        params: host parameters without vocabulary padding.
        step: their step.
        tokens: number of training tokens, for the model card.
        workdir: work directory, whose metrics the model card shows.
        out: folder to write.
        overwrite: replaces an earlier export.
        pooling: writes a folder of sentence-transformers with this pooling.
        averaged: steps of the checkpoints whose weights were averaged.
        network: name of the network to export; the main one by default.
        num_examples: labelled examples of every split of a task, for the model card.
        **storage: `dtype` and `max_shard_bytes` of `save_pretrained`.

    Raises:
        UserError: an encoder-decoder has `pooling`; or as `save_pretrained`.
    """
    # The metrics of the last step are not those of averaged weights.
    metrics = {} if len(averaged) > 1 else metrics_at(workdir, step)
    model = _exported_model(exp, params, network, tokenizer)
    labels = model.config.labels if isinstance(model, PretrainedModel) else ()
    card = model_facts(exp.cfg, tokenizer, tokens, step, metrics, labels=labels, num_examples=num_examples)
    origin = f"step {step}" if len(averaged) < 2 else f"the average of steps {', '.join(map(str, averaged))}"
    if len(averaged) > 1:
        card["steps"] = f"{step} ({origin})"
    storage |= {"card": card, "overwrite": overwrite}
    if isinstance(model, PretrainedModel):
        texts = [] if exp.objective.config.is_finetuning else _sample_lines(exp.cfg)
        hint = _save_network(out, model, pooling, tokenizer=tokenizer, sample_texts=texts, **storage)
    elif pooling is not None:
        raise UserError("a folder of sentence-transformers holds one network; export the encoder with --network model")
    else:
        hint = _save_encoder_decoder(out, model, **storage)
    print(f"exported {origin} to {out}, read back and compared; load it with")
    print(hint)


def _exported_model(
    exp: build.Experiment, params: Params, name: str | None, tokenizer: Tokenizer
) -> PretrainedModel | PretrainedEncoderDecoder:
    """Returns the network of this name, by default the main model, an encoder-decoder with its tokenizer."""
    objective, both = exp.objective, exp.objective.encoder_decoder
    if both is not None and name is None:
        return join_towers(exp, both, params, tokenizer)
    alone = [each for each, network in objective.networks.items() if network.stands_alone]
    name = alone[0] if name is None else name
    if name not in alone:
        raise UserError(f"this run has no network {name!r} that stands alone; there is {' and '.join(alone)}")
    config, heads = objective.networks[name]
    return PretrainedModel(float32_config(config), objective.network_params(params, name), heads)


def _save_network(out: Path, model: PretrainedModel, pooling: Pooling | None, **arguments: Any) -> str:
    """Writes the folder of a single network; returns how to load it."""
    if pooling is None:
        save_pretrained(out, model.params, model.config, heads=model.heads, **arguments)
        plan = plan_export(model.config, model.heads)
        load = f"transformers.{auto_class_of(plan)}.from_pretrained"
    else:
        save_sentence_transformers(out, model, pooling, **arguments)
        plan = plan_export(model.config, drop_heads(model).heads)
        load = "sentence_transformers.SentenceTransformer"
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
        sources = [source for source in parse.all_sources(cfg) if source.spec.is_file or source.kind == "builtin"]
        documents = (document for source in sources for document in iter_documents(source, cfg.data.encoding_errors))
        lines = (line for document in documents for line in document[:_SAMPLED_CHARS].split("\n") if line.strip())
        return list(itertools.islice(lines, _SAMPLED_LINES))
    return []
