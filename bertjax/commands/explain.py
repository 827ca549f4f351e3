"""Attributions of words: what speaks for and against a prediction, an answer, a token or a similarity."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.text import Text

from bertjax.commands.arguments import BatchTokens, Column, File, Flag, Header, Model, Out, as_list
from bertjax.commands.embed import Embedder
from bertjax.commands.predict import SETTINGS, first_record, make_predictor, require_files
from bertjax.commands.signatures import command
from bertjax.config.extensions import TASK_KINDS
from bertjax.errors import UserError, named, require_at_least
from bertjax.experiment.load import batch_tokens as tokens_per_batch
from bertjax.experiment.open_model import Opened, open_model
from bertjax.hf.pretrained import PretrainedModel
from bertjax.hf.sentence_transformers import drop_heads
from bertjax.inference.attributions import Readout
from bertjax.inference.explain import Explainer
from bertjax.inference.explained import Explained, explain_masks, explain_similarities, explain_task
from bertjax.inference.mlm_inference import choose_mask_mode
from bertjax.inference.predict import Predictor, infer_task_kind, make_task_config
from bertjax.inference.predict_inputs import PredictInputs, read_inputs, read_values, to_record
from bertjax.inference.text_batches import read_forwards
from bertjax.inference.text_files import JsonRecord
from bertjax.io.output import open_output, open_records, require_output
from bertjax.io.progress_bar import ProgressBar
from bertjax.report.analyses import EXPLANATIONS, MAX_EXPLANATIONS, explanations_page, heading
from bertjax.report.page import write_page
from bertjax.report.render import store_analysis

log = logging.getLogger(__name__)
MASKS, SIMILARITY, MASKS_HEAD = "fill-mask", "similarity", "mlm"
_WINDOW = 64  # inputs at a time
_READS_AS = {MASKS: "classification", SIMILARITY: "regression"}  # tasks whose readers take single texts, and pairs
_ABOUT = {
    "integrated-gradients": "Integrated gradients: scores add up to the change of the score from the baseline.",
    "gradient-x-input": "Gradient times embedding, summed over the embedding.",
    "leave-one-out": "What the score loses without each word.",
    "attention-rollout": "Attention that flows from each word to where the score is read; it has no sign.",
}


class Explanations(list[dict[str, Any]]):
    """One record per input, as `Explainer` describes them; `str` shows them, or says where they were written."""

    summary: str = ""

    def __str__(self) -> str:
        return self.summary or self.text.plain

    @property
    def text(self) -> Text:
        """All words with their scores, green for the target and red against it."""
        lines = []
        for record in self:
            line = Text(heading(record) + "\n   ")
            for each in record["words"]:
                style = "green" if each["score"] > 0 else "red"
                line.append(f" {each['word']}").append(f" {each['score']:+.3f} ", style=style)
            lines.append(line)
        return Text("\n").join(lines)


@command
def explain(
    model: Model,
    inputs: Annotated[
        Sequence[Any] | Path, Flag("--in", type=File, metavar="FILE", nargs="+", key="task.train", typed="TEXT")
    ],
    *,
    pair: str | None = None,
    out: Out = None,
    html: Out = None,
    kind: str | None = None,
    target: str | None = None,
    word: str | None = None,
    method: Literal["integrated-gradients", "gradient-x-input", "leave-one-out", "attention-rollout"] = (
        "integrated-gradients"
    ),
    baseline: Literal["pad", "mask", "zero", "remove"] | None = None,
    steps: int = 50,
    text_column: Column = None,
    pair_column: Column = None,
    id_column: Column = None,
    header: Header = None,
    max_length: int | None = None,
    batch_tokens: BatchTokens = None,
) -> Explanations:
    """Print how much each word speaks for and against what a model predicts.

    Args:
        inputs: files as of `bertjax predict`; in Python also a list of texts, pairs, lists of words or dicts
        pair: second text of a typed one: of a pair, the context of a question, the text to compare with
        out: a file that ends in .json or .jsonl
        html: a page with colored words, in one file
        kind: a task, fill-mask or similarity (default: the task of the model; else the [MASK] of the text, or the
            similarity of two texts)
        target: class, tag, token, or answer in the context (default: the predicted one)
        word: the word whose tag is explained, or its number from 0 (default: that whose tag other than O has the
            highest score)
        method: integrated-gradients, gradient-x-input, leave-one-out or attention-rollout
        baseline: what replaces words: the embedding of pad or mask, zero, or with leave-one-out remove (default: pad;
            of leave-one-out remove, or mask for tags, answers and masks)
        steps: number for integrated gradients; doubled up to 800 while the completeness error exceeds 1%
        text_column: name or number (0 = first) of the column (default: as finetuned, else text)
        pair_column: that of second texts (default: as finetuned, else none)
        id_column: that of ids (default: as finetuned, else id of .jsonl, otherwise none)
        max_length: tokens per example (default: as finetuned)

    Returns:
        The records; `str` shows them.

    Raises:
        UserError: the model has nothing to explain, an input cannot be read or is too long, or the target is unknown.

    Example:
        bertjax explain --model runs/reviews "A charming, if uneven, debut." --html why.html
    """
    require_at_least(1, batch_tokens=batch_tokens, steps=steps)
    require_at_least(8, max_length=max_length)
    items = as_list("inputs", inputs)
    are_files = all(isinstance(item, os.PathLike) for item in items)
    if pair is not None:
        if are_files:
            raise UserError(f"{named('pair')} belongs to a typed text; a file holds pairs itself")
        items = [(item, pair) for item in items]
    _check_files(items if are_files else [], out, html)
    result = Explanations()
    if not items:
        return result
    opened = open_model(model, MASKS_HEAD if kind == MASKS else None, pooled=True)
    of_kind = choose_kind(opened, kind, items[0] if not are_files else None)
    if of_kind == SIMILARITY and any(isinstance(item, str) for item in items) and not are_files:
        raise UserError(f"the similarity of two texts is explained: give the second text with {named('pair')}")
    records = (
        []
        if are_files
        else [to_record(item, index, _READS_AS.get(of_kind, of_kind)) for index, item in enumerate(items)]
    )
    files = [os.fspath(item) for item in items] if are_files else []
    values = (text_column, pair_column, None, id_column, header, max_length, None)
    reader = _Reader(opened, of_kind, dict(zip(SETTINGS, values, strict=True)), files, records, batch_tokens)
    explainer = Explainer(
        reader.model, opened.tokenizer, reader.readout, method, baseline, steps, tokens_per_batch(batch_tokens)
    )
    with ProgressBar("inputs") as progress:
        for window in reader.windows():
            result += explainer(reader.explained(window, target, word), window.ids)
            progress.update(len(result))
    for note in explainer.notes:
        log.warning(note)
    result.summary = _write(result, out, html, _ABOUT[method])
    store_analysis(model, EXPLANATIONS, {"about": _ABOUT[method], "records": result[:MAX_EXPLANATIONS]})
    return result


def show(result: Explanations) -> None:
    """Prints the result, in color on a terminal."""
    if result.summary:
        print(result.summary)
    else:
        Console(highlight=False, soft_wrap=not Console().is_terminal).print(result.text)


def choose_kind(opened: Opened, requested: str | None, first: Any) -> str:
    """Returns what is explained: a kind of task, fill-mask or similarity.

    Args:
        opened: the model.
        requested: its name, or None.
        first: the first input, if there are no files.

    Raises:
        UserError: the model cannot do that, or writes texts, which have no attributions.
    """
    model = opened.model
    if not isinstance(model, PretrainedModel) or model.config.causal:
        raise UserError(
            "explanations are for models that read both sides of a word; this one writes from left to right"
        )
    if requested in (MASKS, SIMILARITY):
        return requested
    has_task = any(TASK_KINDS[name].head in model.heads for name in TASK_KINDS.builtin)
    if "multiple_choice" in (*model.heads, requested):
        raise UserError(
            f"choices are compared, which no explanation shows; {named('kind', SIMILARITY)} explains the similarity of "
            "a choice and its context"
        )
    if requested is not None or opened.trained is not None or has_task:
        return infer_task_kind(model, requested or (opened.trained.kind if opened.trained else None))
    is_pair = first is not None and not isinstance(first, str)
    return MASKS if MASKS_HEAD in model.heads and not model.module_files and not is_pair else SIMILARITY


def _check_files(files: Sequence[Any], out: Any, html: Any) -> None:
    require_files([os.fspath(item) for item in files])
    if out is not None and Path(out).suffix not in (".json", ".jsonl"):
        raise UserError(f"{named('out')} {out} must end in .json or .jsonl")
    for path in (out, html):
        if path is not None:
            require_output(path)


class _Reader:
    """Reads the inputs of one kind, and says what is explained of them."""

    def __init__(
        self,
        opened: Opened,
        kind: str,
        settings: dict[str, Any],
        files: Sequence[str],
        records: Sequence[JsonRecord],
        batch_tokens: int | None,
    ) -> None:
        self._opened, self._kind, self._files, self._records = opened, kind, files, records
        self.model = read_forwards(opened.model)
        config, heads = self.model.config, self.model.heads
        if kind == MASKS:
            masks = choose_mask_mode(opened.model, opened.tokenizer.mask_id, opened.two_streams)
            self.readout = Readout(config, heads, MASKS_HEAD, masks)
        elif kind == SIMILARITY:
            self.model = drop_heads(self.model)
            self._embedder = Embedder(opened.model, opened.tokenizer, opened.pooling, tokens_per_batch(batch_tokens))
            self.readout = self._embedder.readout
            settings["pair_column"] = settings["pair_column"] or "pair"
        else:
            first = first_record(list(files)) if files else records[0]
            predictor = make_predictor(opened, kind, settings, first, batch_tokens)
            assert isinstance(predictor, Predictor)  # `choose_kind` leaves out models that write texts
            self._predictor = predictor
            self.readout = Readout(config, heads, TASK_KINDS.load(kind).head)
            self._config = self._predictor.config
            return
        self._config = make_task_config(opened.model, _READS_AS[kind], None, **settings)

    def windows(self) -> Iterator[PredictInputs]:
        """Yields the inputs, some at a time."""
        if self._files:
            return read_inputs(self._config, self._files, window=_WINDOW)
        return read_values(self._config, self._records, window=_WINDOW)

    def explained(self, inputs: PredictInputs, target: str | None, word: str | None) -> list[Explained]:
        """Returns what is explained of inputs."""
        if self._kind in (MASKS, SIMILARITY) and word is not None:
            raise UserError(f"{named('word', word)}: only tags are explained word by word")
        tokenizer = self._opened.tokenizer
        if self._kind == MASKS:
            masks = self.readout.masks
            assert masks is not None
            return explain_masks(self.model, tokenizer, masks, inputs, target)
        if self._kind == SIMILARITY:
            if target is not None:
                raise UserError(f"{named('target', target)}: a similarity is one number, which needs no target")
            embedder = self._embedder
            return explain_similarities(embedder, tokenizer, embedder.pooling, inputs, embedder.max_length)
        return explain_task(self._predictor, tokenizer, inputs, target, word)


def _write(result: Explanations, out: Any, html: Any, about: str) -> str:
    """Writes the files, and returns what was written where."""
    if out is not None and Path(out).suffix == ".json":
        with open_output(out, "w") as file:
            json.dump(result, file, ensure_ascii=False, indent=1)
    elif out is not None:
        with open_records(out) as write:
            for record in result:
                write(record)
    if html is not None:
        write_page(Path(html), explanations_page("Explanations", result, about))
    written = ", ".join(os.fspath(path) for path in (out, html) if path is not None)
    return f"{len(result):,} explanations: {written}" if written else ""
