"""Predictions of a finetuned model for the examples of files."""

from __future__ import annotations

import contextlib
import glob
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertjax.config.extensions import TASK_KINDS
from bertjax.config.objectives import objective_class
from bertjax.config.task import TaskConfig, task_config
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError
from bertjax.experiment.load import batch_tokens, load_finetuned, require_batch_tokens, require_model
from bertjax.experiment.workdir import read_config
from bertjax.finetuning.readers.examples import QaExamples, TextExamples
from bertjax.hf.encoder_decoder.pretrained import PretrainedEncoderDecoder
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.safe_files import CONFIG, read_json
from bertjax.inference.predict import Predictor, infer_task_kind, make_task_config
from bertjax.inference.predict_inputs import WINDOW, PredictInputs, read_inputs
from bertjax.inference.predict_texts import TextPredictor
from bertjax.inference.text_files import JsonRecord, is_jsonl, read_records
from bertjax.io.atomic import atomic_file
from bertjax.io.jsonl import STDIN
from bertjax.io.progress_bar import ProgressBar
from bertjax.metrics import scores_line


class PredictOptions(NamedTuple):
    """Settings of reading and prediction; None takes the setting of finetuning, otherwise the usual one."""

    kind: str | None = None
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    id_column: str | None = None
    header: bool | None = None
    max_length: int | None = None
    allow_no_answer: bool | None = None
    top_k: int | None = None
    batch_tokens: int | None = None


def predict(
    folder: Path, files: Sequence[str], out: str, options: PredictOptions, score: bool, with_input: bool
) -> None:
    """Writes one JSON object per example, in the order of the input.

    Args:
        folder: a Hugging Face folder, an export or a work directory.
        files: the examples.
        out: a .jsonl file, which appears when it is complete, or "-" for standard output.
        options: how examples are read.
        score: also prints the metrics against the labels of the input.
        with_input: also writes the texts.

    Raises:
        UserError: the model has no task, or an example cannot be read.
    """
    check_options(options)
    if out != STDIN and not Path(out).parent.is_dir():
        raise UserError(f"no folder {Path(out).parent} for --out; make it first")
    predictor = load_predictor(folder, options, files)
    window = None if score else WINDOW
    began, count = time.monotonic(), 0
    shown: IO[str] = sys.stderr if out == STDIN else sys.stdout
    with ProgressBar("examples") as progress, open_output(out) as write:
        for inputs in read_inputs(predictor.config, files, gold=score, window=window):
            predictions = predictor(inputs)
            for index, record in enumerate(predictions.records):
                write(record | _input(inputs, index) if with_input else record)
            if score:
                metrics = predictor.score(inputs, predictions).metrics
            count += len(predictions.records)
            progress.update(count)
        if not count:
            raise UserError(f"--in {' '.join(files)} holds no example")
    took = time.monotonic() - began
    print(f"{count:,} examples, {predictor.config.kind}, in {took:.1f} s: {out}", file=shown)
    for note in predictor.notes:
        print(note, file=shown)
    if score:
        print(scores_line(metrics), file=shown)


def check_options(options: PredictOptions) -> None:
    """Raises `UserError` for numbers that are too small."""
    require_batch_tokens(options.batch_tokens)
    for flag, value, least in (("--top-k", options.top_k, 1), ("--max-length", options.max_length, 8)):
        if value is not None and value < least:
            raise UserError(f"{flag} must be at least {least}, not {value}")


def load_predictor(folder: Path, options: PredictOptions, files: Sequence[str]) -> Predictor | TextPredictor:
    """Loads a model with the settings of its finetuning.

    Args:
        folder: a Hugging Face folder, an export or a work directory.
        options: settings that replace those of finetuning.
        files: the examples, whose first record shows whether they are pairs.

    Raises:
        UserError: a file is missing, or the model has no task.
    """
    require_files(files)
    folder = require_model(folder)
    trained = trained_task(folder)
    require_one_label(folder)
    model, tokenizer = load_finetuned(folder, trained)[:2]
    return make_predictor(model, tokenizer, trained, options, first_record(files))


def make_predictor(
    model: PretrainedModel | PretrainedEncoderDecoder,
    tokenizer: Tokenizer,
    trained: TaskConfig | None,
    options: PredictOptions,
    first: JsonRecord | None,
) -> Predictor | TextPredictor:
    """Makes the predictor of a loaded model.

    Args:
        model: the finetuned model.
        tokenizer: its tokenizer.
        trained: settings of its finetuning, if they are known.
        options: settings that replace them.
        first: first record of the examples, if they are records; shows whether they are pairs.

    Raises:
        UserError: the model has no task, or a setting does not suit it.
    """
    check_options(options)
    kind = infer_task_kind(model, options.kind or (trained.kind if trained else None))
    names = ("text_column", "pair_column", "label_column", "id_column", "header", "max_length", "allow_no_answer")
    values = {name: getattr(options, name) for name in names}
    values["pair_column"] = values["pair_column"] or _pair_of(trained, kind, first)
    config = make_task_config(model, kind, trained, **values)
    tokens = batch_tokens(options.batch_tokens)
    if isinstance(model, PretrainedEncoderDecoder):
        return TextPredictor(model, tokenizer, config, tokens)
    return Predictor(model, tokenizer, config, tokens, options.top_k)


def require_one_label(folder: Path) -> None:
    """Raises `UserError` for a multi-label classifier, for which a softmax would be wrong."""
    config = folder / CONFIG
    if config.is_file() and read_json(folder, CONFIG).get("problem_type") == "multi_label_classification":
        raise UserError(f"{config}: problem_type is multi_label_classification, which is not supported")


def trained_task(folder: Path) -> TaskConfig | None:
    """Returns the task of the work directory of a finetuned run; None for other folders."""
    if not (folder / "checkpoints").is_dir():
        return None
    cfg = read_config(folder)
    return task_config(cfg) if objective_class(cfg.objective.name).is_finetuning else None


def require_files(files: Sequence[str], flag: str = "--in") -> None:
    """Raises `UserError` for a missing file, before a model is loaded."""
    for file in files:
        if file != STDIN and ":" not in file and not glob.has_magic(file) and not Path(file).expanduser().is_file():
            raise UserError(f"{flag} {file}: no such file")


def first_record(files: Sequence[str]) -> JsonRecord | None:
    """Returns the first record of a .jsonl file, None for other files."""
    first = next(iter(files), STDIN)
    return next(read_records(first.removeprefix("jsonl:")), None) if is_jsonl(first) else None


def _pair_of(trained: TaskConfig | None, kind: str, first: JsonRecord | None) -> str | None:
    """Returns "pair" if the first record has such a field and no setting names the column."""
    spec = TASK_KINDS.load(kind)
    if not spec.reads_texts or spec.has_targets or (trained is not None and trained.kind == kind):
        return None
    return "pair" if first is not None and "pair" in first.values else None


def _input(inputs: PredictInputs, index: int) -> dict[str, Any]:
    """Returns the texts of an example."""
    examples = inputs.examples
    if isinstance(examples, TextExamples):
        pair = {} if examples.pairs is None else {"pair": examples.pairs[index]}
        return {"text": examples.texts[index], **pair}
    if isinstance(examples, QaExamples):
        return {"question": examples.questions[index], "context": examples.contexts[examples.context_of[index]]}
    cut = inputs.split_texts[index]
    return {} if cut is None else {"text": cut[0]}


@contextlib.contextmanager
def open_output(out: str) -> Iterator[Callable[[dict[str, Any]], object]]:
    """Yields a function that writes a record; a file appears when it is complete.

    Args:
        out: the file; "-" = standard output.

    Raises:
        UserError: it cannot be written.
    """
    if out == STDIN:
        yield lambda record: sys.stdout.write(_line(record))
        return
    try:
        with atomic_file(Path(out), "w") as file:
            yield lambda record: file.write(_line(record))
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror or error}") from None


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
