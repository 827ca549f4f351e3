"""Linear probes: what every layer of a model knows of words or texts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from bertjax.commands.arguments import Column, Flag, Header, Out
from bertjax.commands.pretrain import read_seeds
from bertjax.commands.signatures import command
from bertjax.config.sources import parse_task_source
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment.open_model import open_model
from bertjax.hf.forward import max_input_length
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.probing import LayerScores, Probes, join_seeds, score_layers
from bertjax.inference.text_files import as_texts
from bertjax.io.atomic import write_json
from bertjax.io.output import Results, align, require_output
from bertjax.io.stderr import note
from bertjax.report.analyses import LAYERS, columns, probes_page
from bertjax.report.comparability import unique_names
from bertjax.report.page import write_page
from bertjax.report.render import store_analysis
from bertjax.tasks.classification import Classification
from bertjax.tasks.readers.examples import TextExamples, WordExamples, read_examples
from bertjax.tasks.readers.labels import sorted_names
from bertjax.tasks.tokens import TokenClassification

MAX_LENGTH = 128
_HELD_OUT_SEED = 0


@command
def probe(
    models: Annotated[Sequence[str], Flag("--model", metavar="FOLDER", repeated=True, required=True)],
    train: Annotated[Sequence[str], Flag(metavar="SOURCE", nargs="+", key="task.train")],
    held_out: Annotated[Sequence[str], Flag("--eval", metavar="SOURCE", nargs="+", key="task.eval")],
    *,
    kind: Literal["tokens", "classification"] | None = None,
    text_column: Column = None,
    pair_column: Column = None,
    label_column: Column = None,
    header: Header = None,
    seeds: Annotated[str, Flag(metavar="N,N,...")] = "0,1,2",
    max_examples: int = 5000,
    out: Out = None,
    html: Out = None,
) -> Results:
    """Train a linear classifier on the frozen states of every layer: what a model knows, and where.

    Words also have a control task, a random label per word form. Selectivity is
    the accuracy less that of the control task.

    Args:
        models: a Hugging Face folder, an export, a run or hub:NAME; repeatable
        train: labeled data, as in task.train: conll: for words, tsv:, csv:, jsonl:, ... for texts
        held_out: labeled data to score, of the same form
        kind: tokens (words with tags) or classification (texts); default: tokens for conll:, else classification
        text_column: column of the text, or of the words
        pair_column: column of the second text (default: none)
        label_column: column of the label, or of the tags
        seeds: one sample of the training data and one control task each
        max_examples: words or texts to train on, and to score
        out: .json file for the scores
        html: a page with a chart by layer, in one file

    Returns:
        The scores by model: a list of layers, from the embeddings on.

    Raises:
        UserError: a model or a source cannot be read, or the data has a single label.

    Example:
        bertjax probe --model runs/mine --train conll:train.txt --eval conll:dev.txt
    """
    require_at_least(2, max_examples=max_examples)
    for path in (out, html):
        if path is not None:
            require_output(path)
    sources = tuple(as_texts("train", train))
    config = TaskConfig(
        kind or _kind_of(sources),
        sources,
        tuple(as_texts("held_out", held_out)),
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        header=header,
        max_length=MAX_LENGTH,
    )
    splits: Any = [read_examples(config, split) for split in ("train", "eval")]
    labels = _labels(splits)
    models = [models] if isinstance(models, str | os.PathLike) else list(models)
    scores: dict[str, list[LayerScores]] = {}
    for name, model in zip(unique_names([Path(each) for each in models]), models, strict=True):
        note(f"probing {name}")
        scores[name] = _score(model, config, splits, labels, read_seeds(seeds), max_examples)
    about = f"{config.spec.title} of {', '.join(config.eval)}: {len(labels)} labels"
    about += f", at most {max_examples:,} {'words' if config.kind == TokenClassification.name else 'texts'} each"
    values = {name: [_values(each) for each in layers] for name, layers in scores.items()}
    for name, model in zip(values, models, strict=True):
        store_analysis(model, LAYERS, {"about": f"Linear probes: {about}.", "layers": {name: values[name]}})
    if out is not None:
        write_json(Path(out), values, indent=1)
    if html is not None:
        write_page(Path(html), probes_page(scores, f"Linear probes: {about}."))
    return Results(values, [about, *itertools.chain.from_iterable(map(_lines, scores, scores.values()))])


def _kind_of(sources: Sequence[str]) -> str:
    kinds = {parse_task_source(source, "the source").kind for source in sources}
    return TokenClassification.name if kinds <= {"conll"} else Classification.name


def _labels(splits: Sequence[TextExamples | WordExamples]) -> tuple[str, ...]:
    """Returns the labels of the training examples and of the held-out ones."""
    names: set[str] = set()
    for each in splits:
        tags = each.tags if isinstance(each, WordExamples) else [each.labels or ()]
        names.update(itertools.chain.from_iterable(tags or ()))
    if len(names) < 2:
        raise UserError(f"{named('train')}: the data has the label {', '.join(names)} alone; a probe needs two")
    return tuple(sorted_names(names))


def _score(
    source: str,
    config: TaskConfig,
    splits: Sequence[TextExamples | WordExamples],
    labels: Sequence[str],
    seeds: Sequence[int],
    most: int,
) -> list[LayerScores]:
    opened = open_model(source)
    if not isinstance(opened.model, PretrainedModel):
        raise UserError(f"{named('models', source)} has an encoder and a decoder; export its encoder alone")
    limit = max_input_length(opened.model.config)
    fitting = config.replace(max_length=min(config.max_length, limit or config.max_length))
    probes = Probes(opened.model, opened.tokenizer, fitting, labels)
    held_out = probes.read(splits[1], most, _HELD_OUT_SEED)
    return join_seeds([score_layers(probes.read(splits[0], most, seed), held_out, labels, seed) for seed in seeds])


def _values(scores: LayerScores) -> dict[str, object]:
    values: dict[str, object] = {"layer": scores.layer, "accuracy": list(scores.accuracy)}
    values |= {name: list(each) for name in ("f1", "control") if (each := getattr(scores, name))}
    return values if scores.selectivity is None else values | {"selectivity": scores.selectivity}


def _lines(model: str, layers: Sequence[LayerScores]) -> list[str]:
    heads, rows = columns(layers)
    aligned = align([heads, *rows], right=range(len(heads)))
    best = max(layers, key=lambda each: sum(each.f1 or each.accuracy))
    return ["", model, *aligned, f"best layer: {best.layer}"]
