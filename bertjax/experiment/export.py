"""`bertjax export`: a checkpoint as a folder that `transformers` loads, verified as it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax.config.model import float32_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.experiment import build
from bertjax.experiment.load import load_run
from bertjax.experiment.model_card_facts import model_facts
from bertjax.experiment.workdir import metrics_at
from bertjax.hf.export_plan import plan_export
from bertjax.hf.model_card import auto_class_of
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.push import check_repository, push_to_hub
from bertjax.hf.save import save_pretrained
from bertjax.hf.sentence_transformers import Pooling, save_sentence_transformers
from bertjax.types import Params


class Upload(NamedTuple):
    """Where an export goes on the Hub; a repository that is new is private unless `public`."""

    repo: str
    public: bool = False


def export(
    workdir: Path,
    out: Path,
    step: int | None,
    overwrite: bool,
    pooling: Pooling | None = None,
    upload: Upload | None = None,
    average_last: int = 1,
    network: str | None = None,
) -> None:
    """Writes the newest checkpoint of a run, or that of `step`, to `out`, and uploads it if asked to.

    `average_last` K writes the mean of the weights of the last K checkpoints instead; `network` names one of several.
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
) -> None:
    """Writes parameters (true vocabulary size, on the host) and tokenizer; says what is there when it is verified.

    With `pooling` the folder is one of sentence-transformers; `averaged` names the steps of an average of several;
    `num_examples` counts the labelled examples of a task, for the model card.
    """
    name = next(iter(exp.objective.networks)) if network is None else network
    if name not in exp.objective.networks:
        raise UserError(f"this run has no network {name!r}; there is {' and '.join(exp.objective.networks)}")
    config, heads = exp.objective.networks[name]
    config, params = float32_config(config), exp.objective.network_params(params, name)
    # what was measured at the last step was measured of other weights than an average over several
    figures = {} if len(averaged) > 1 else metrics_at(workdir, step)
    card = model_facts(exp.cfg, tokenizer, tokens, step, figures, labels=config.labels, num_examples=num_examples)
    origin = f"step {step}" if len(averaged) < 2 else f"the average of steps {', '.join(map(str, averaged))}"
    if len(averaged) > 1:
        card["steps"] = f"{step} ({origin})"
    if pooling is None:
        save_pretrained(out, params, config, heads=heads, tokenizer=tokenizer, card=card, overwrite=overwrite)
        auto = auto_class_of(plan_export(config, heads))
        load = f"transformers.{auto}.from_pretrained" if auto else "bertjax.load_pretrained"
    else:
        model = PretrainedModel(config, params, heads)
        save_sentence_transformers(out, model, pooling, tokenizer=tokenizer, card=card, overwrite=overwrite)
        load = "sentence_transformers.SentenceTransformer"
    print(f"exported {origin} to {out}, read back and compared; load it with")
    print(f"    {load}({str(out)!r})")
