"""Labels of a larger model for texts without any, those to keep, and how far to trust them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from bertjax.commands.arguments import BatchTokens, Column, File, Flag, Header, Model, RequiredOut, as_list
from bertjax.commands.predict import first_record, make_predictor, require_files
from bertjax.commands.signatures import command
from bertjax.config.task import TaskConfig
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment.open_model import open_model
from bertjax.inference.predict import Predictor, infer_task_kind
from bertjax.inference.predict_inputs import PLACEHOLDER_SOURCE, PredictInputs, read_inputs
from bertjax.inference.pseudo_labels import (
    NO_TEXT,
    REASONS,
    Agreement,
    Candidate,
    Key,
    LabelBuckets,
    compute_agreement,
    select_candidates,
    sort_candidates,
    summarize,
    summary_path,
    text_key,
)
from bertjax.inference.text_files import JsonRecord, read_records
from bertjax.io import atomic
from bertjax.io.output import Results, require_output
from bertjax.io.progress_bar import ProgressBar
from bertjax.io.staging import output_path
from bertjax.tasks.classification import Classification
from bertjax.tasks.readers.examples import TextExamples

ENDINGS = (".jsonl", ".tsv")


class Selection(NamedTuple):
    """Limits on the labels to keep."""

    min_confidence: float | None = None
    max_per_class: int | None = None
    balance: bool = False


@command
def pseudo_label(
    inputs: Annotated[Sequence[str] | Path, Flag("--in", type=File, metavar="FILE", nargs="+", key="task.train")] = (),
    *,
    out: RequiredOut = None,
    model: Model | None = None,
    labels_file: Annotated[str | None, Flag(metavar="FILE")] = None,
    labels: Annotated[str | Sequence[str] | None, Flag(metavar="A,B")] = None,
    min_confidence: Annotated[float | None, Flag(type=float, metavar="P")] = None,
    max_per_class: int | None = None,
    balance: bool = False,
    gold: Annotated[str | Path | None, Flag(metavar="FILE")] = None,
    text_column: Column = None,
    pair_column: Column = None,
    label_column: Column = None,
    id_column: Column = None,
    header: Header = None,
    max_length: int | None = None,
    batch_tokens: BatchTokens = None,
) -> Results:
    """Label texts with a larger model, and measure how reliable the labels are.

    Writes the selected labels as task.train reads them, with a summary in a JSON file next to them.

    Args:
        inputs: jsonl, txt (one text per line), tsv, csv, conll, json (SQuAD), or KIND:WHERE as in task.train
        out: .jsonl or .tsv to train on
        model: a classifier
        labels_file: .jsonl of a language model instead: text or id, label, confidence
        labels: those of that file (default: of the gold sample)
        min_confidence: keep labels of at least this probability
        max_per_class: keep at most N examples per label, the most confident ones
        balance: keep as many examples of each label as the rarest has
        gold: a sample labeled by people (.tsv, .csv, .jsonl)
        text_column: name or number (0 = first) of the column (default: as finetuned, else text)
        pair_column: that of second texts (default: as finetuned, else none)
        label_column: that of labels (default: as finetuned, else label)
        id_column: that of ids (default: as finetuned, else id of .jsonl, otherwise none)
        max_length: tokens per example (default: as finetuned)

    Returns:
        What the summary holds: counts per label, agreement with the gold sample.

    Raises:
        UserError: an input cannot be read, or no label is left.

    Example:
        bertjax pseudo-label --model runs/teacher --in texts.txt --gold hundred.tsv --out silver.jsonl
    """
    files = [os.fspath(each) for each in as_list("inputs", inputs)]
    names = tuple(name.strip() for name in labels.split(",")) if isinstance(labels, str) else tuple(labels or ())
    names, selection = tuple(filter(None, names)), Selection(min_confidence, max_per_class, balance)
    path = _checked_out(out)
    if (model is None) == (labels_file is None):
        raise UserError(
            f"give either {named('model')} FOLDER (a classifier) or {named('labels_file')} FILE.jsonl (of a language "
            "model)"
        )
    if model is not None and not files:
        raise UserError(f"{named('inputs')} is missing: the texts to label")
    if model is not None and names:
        raise UserError(f"{named('labels')} belongs to {named('labels_file')}: a classifier has its own")
    if min_confidence is not None and not 0.0 <= min_confidence <= 1.0:
        raise UserError(f"{named('min_confidence')} must lie between 0 and 1, not {min_confidence}")
    require_at_least(1, max_per_class=max_per_class, batch_tokens=batch_tokens)
    require_at_least(8, max_length=max_length)
    columns = {"text": text_column, "pair": pair_column, "label": label_column, "id": id_column}
    reading: dict[str, Any] = {f"{name}_column": column for name, column in columns.items()} | {"header": header}
    sample = None if gold is None else os.fspath(gold)
    if model is not None:
        predictor = _classifier(model, reading | {"max_length": max_length}, files, batch_tokens)
        config, classes = predictor.config, predictor.labels
        gold_labels = _gold(config, sample, classes)
        candidates = list(_model_labels(predictor, files, "texts"))
        on_gold = list(_model_labels(predictor, [sample], "gold examples")) if sample is not None else []
    else:
        config = _read_as(reading)
        gold_labels = _gold(config, sample, names)
        classes = names or tuple(sorted(set(gold_labels.values())))
        if len(classes) < 2:
            raise UserError(
                f"{named('labels')} is missing: name the labels, such as {named('labels')} negative,positive"
            )
        candidates = on_gold = list(_file_labels(config, str(labels_file), files))
    agreement = None
    if sample is not None:
        answers = sort_candidates(on_gold, classes).candidates
        agreement = compute_agreement(answers, gold_labels, classes, min_confidence)
    usable = sort_candidates(candidates, classes, gold_labels)
    selected = select_candidates(usable.candidates, *selection)
    if not selected:
        raise UserError(f"no label is left to keep: {_dropped(usable, selection, 0)}")
    facts = summarize(path.name, str(model or labels_file), classes, usable, selected, min_confidence, agreement)
    with output_path(path) as local:
        _write(local, selected)
    with output_path(summary_path(path)) as local:
        atomic.write_json(local, facts, ensure_ascii=False)
    return Results(facts, _summary(path, facts, usable, selection, agreement))


def _checked_out(out: str | os.PathLike[str] | None) -> Path:
    if out is None:
        raise UserError(f"{named('out')} is missing: a .jsonl or .tsv file")
    path = Path(out).expanduser()
    if path.suffix not in ENDINGS:
        raise UserError(f"{named('out')} {out} must end in {' or '.join(ENDINGS)}")
    require_output(path)
    return path


def _classifier(model: Any, settings: dict[str, Any], files: Sequence[str], tokens: int | None) -> Predictor:
    require_files(files)
    opened = open_model(model, finetuned=True)
    task = infer_task_kind(opened.model, opened.trained.kind if opened.trained else None)
    predictor = make_predictor(opened, task, settings, first_record(files), tokens)
    spec = predictor.config.spec
    if not spec.has_classes or spec.examples is not TextExamples or spec.many_labels:
        raise UserError(
            f"{named('model')} {model} is a model of kind {predictor.config.kind}; labels come from a classifier"
        )
    assert isinstance(predictor, Predictor)  # it has classes
    return predictor


def _read_as(settings: Mapping[str, Any]) -> TaskConfig:
    """Returns the settings of reading without a model."""
    chosen = {key: value for key, value in settings.items() if value is not None}
    return TaskConfig(Classification.name, (PLACEHOLDER_SOURCE,), **chosen)


def _texts(inputs: PredictInputs) -> TextExamples:
    assert isinstance(inputs.examples, TextExamples)
    return inputs.examples


def _keys(inputs: PredictInputs) -> list[Key]:
    results = _texts(inputs)
    pairs: Sequence[str | None] = results.pairs if results.pairs is not None else [None] * len(results)
    return [text_key(text, pair) for text, pair in zip(results.texts, pairs, strict=True)]


def _gold(config: TaskConfig, file: str | None, labels: Sequence[str]) -> dict[Key, str]:
    """Returns the gold label of every text of the sample; numbers are indices into `labels` if those are words.

    Raises `UserError` where a text has two.
    """
    gold: dict[Key, str] = {}
    if file is None:
        return gold
    by_number = {} if any(each.isdecimal() for each in labels) else {str(i): name for i, name in enumerate(labels)}
    require_files([file], "gold")
    for inputs in read_inputs(config, [file], gold=True):
        examples = _texts(inputs)
        for key, name, location in zip(_keys(inputs), examples.labels or [], examples.locations, strict=True):
            name = by_number.get(name, name)
            if gold.setdefault(key, name) != name:
                raise UserError(f"{location}: another gold label for the same text: {key[0][:60]!r}")
    if not gold:
        raise UserError(f"{named('gold')} {file} holds no example")
    return gold


def _model_labels(predictor: Predictor, files: Sequence[str], what: str) -> Iterator[Candidate]:
    count = 0
    with ProgressBar(what) as progress:
        for inputs in read_inputs(predictor.config, files):
            records = predictor(inputs).records
            for key, record in zip(_keys(inputs), records, strict=True):
                yield Candidate(key, record["label"], record["score"], record["id"])
            count += len(records)
            progress.update(count)
    if not count:
        raise UserError(f"{named('inputs')} {' '.join(files)} holds no example")


def _file_labels(config: TaskConfig, file: str, files: Sequence[str]) -> Iterator[Candidate]:
    """Yields the labels of a .jsonl file; labels without a text get it from `files` by their id."""
    by_id: dict[str, Key] = {}
    for inputs in read_inputs(config, files):
        for name, key in zip(inputs.ids, _keys(inputs), strict=True):
            if by_id.setdefault(str(name), key) != key:
                raise UserError(f"{named('inputs')}: two texts have the id {name!r}; answers could be to either")
    key_in = _finder(config, by_id)
    for record in read_records(file):
        name = config.label_column or "label"
        if name not in record.values:
            raise UserError(
                f"{record.location}: no field {name!r}; name the field of the answers with {named('label_column')}"
            )
        yield Candidate(
            key_in(record), record.values[name], _confidence(record), record.values.get(config.id_column or "id")
        )


def _finder(config: TaskConfig, by_id: Mapping[str, Key]) -> Callable[[JsonRecord], Key]:
    text, pair, name = config.text_column or "text", config.pair_column, config.id_column or "id"

    def key_in(record: JsonRecord) -> Key:
        if text in record.values:
            return text_key(record.text(text), None if pair is None else record.text(pair))
        if name not in record.values:
            raise UserError(
                f"{record.location}: neither {text!r} nor {name!r} tells which text is answered "
                f"({named('text_column')}, {named('id_column')})"
            )
        if not by_id:
            raise UserError(f"{record.location}: an id without its text; give the texts with {named('inputs')}")
        return by_id.get(str(record.values[name]), NO_TEXT)

    return key_in


def _confidence(record: JsonRecord) -> float | None:
    value = record.values.get("confidence")
    if value is None:
        return None
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0.0 <= number <= 1.0:
        raise UserError(f"{record.location}: confidence must be a number between 0 and 1, not {value!r}")
    return number


def _write(out: Path, saved: Sequence[Candidate]) -> None:
    """.jsonl, or .tsv with a header; raises `UserError` for a text that a .tsv file cannot hold."""
    records = []
    for each in saved:
        pair = {} if each.key[1] is None else {"pair": each.key[1]}
        sure = {} if each.confidence is None else {"confidence": each.confidence}
        records.append({"id": each.id, "text": each.key[0], **pair, "label": each.label, **sure})
    if out.suffix == ".jsonl":
        atomic.write_text(out, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
        return
    names = ["text", *(["pair"] if saved[0].key[1] is not None else []), "label"]
    rows = [[str(record[name]) for name in names] for record in records]
    broken = next((row for row in rows if any(sign in cell for cell in row for sign in "\t\r\n")), None)
    if broken is not None:
        raise UserError(f"{named('out')} {out}: a text holds a tab or a line break, give .jsonl: {broken[0][:60]!r}")
    atomic.write_text(out, "".join("\t".join(row) + "\n" for row in [names, *rows]))


def _dropped(usable: LabelBuckets, selection: Selection, saved: int) -> str:
    parts = [f"{count:,} {REASONS[reason]}" for reason, count in usable.dropped().items()]
    left = len(usable.candidates) - saved
    if left:
        limited = selection.max_per_class or selection.balance
        why = "below the confidence, or above the limit of a label" if limited else ""
        parts.append(f"{left:,} {why or 'below the confidence'}")
    return "; ".join(parts) or "no answers"


def _summary(
    out: Path, facts: Mapping[str, Any], usable: LabelBuckets, selection: Selection, results: Agreement | None
) -> list[str]:
    threshold = "" if selection.min_confidence is None else f", confidence at least {selection.min_confidence:g}"
    counts = f"{facts['kept']:,} of {facts['of']:,} labels kept{threshold}"
    lines = [f"{counts}: {out}, with a summary in {summary_path(out).name}"]
    if facts["kept"] < facts["of"]:
        lines.append(f"left out: {_dropped(usable, selection, facts['kept'])}")
    if usable.unknown_labels:
        lines.append("no labels: " + ", ".join(f"{text!r} ({count:,})" for text, count in usable.unknown_labels))
    lines.append(facts["trust"])
    if results is not None:
        kappa = "" if results.kappa is None else f"Cohen's kappa {results.kappa:.3f}"
        missing = f"{results.unanswered:,} of {results.total:,} gold texts have no answer" if results.unanswered else ""
        lines += ["; ".join(each for each in (kappa, missing) if each)] if kappa or missing else []
    alone = {row["label"] for row in facts["rows"] if row["kept"]}
    if len(alone) == 1:
        lines.append(
            f"every label kept is {alone.pop()!r}: a task needs two; lower {named('min_confidence')}, or add texts"
        )
    width = max(len("label"), *(len(row["label"]) for row in facts["rows"]))
    lines.append(f"{'label':{width}}     kept       of" + (" agreement  examples" if results is not None else ""))
    for row in facts["rows"]:
        line = f"{row['label']:{width}} {row['kept']:8,} {row['of']:8,}"
        if results is not None:
            share = "-" if row["agreement"] is None else f"{row['agreement']:.1%}"
            line += f" {share:>9} {row['gold_predicted']:9,}"
        lines.append(line)
    if results is not None and results.thresholds:
        lines.append("confidence  gold examples  agreement")
        for level in results.thresholds:
            share = "-" if level.agreement is None else f"{level.agreement:.1%}"
            lines.append(f"{level.confidence:10g} {level.examples:14,} {share:>10}")
    return lines
