"""Predictions for the masks of sentences."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bertjax.errors import UserError
from bertjax.experiment.load import load_model
from bertjax.inference.fill_mask import MaskPrediction, fill_masks
from bertjax.inference.mlm_inference import choose_mask_mode
from bertjax.inference.text_files import read_texts
from bertjax.io.jsonl import STDIN


def fill_mask(folder: Path, sentences: Sequence[str], top_k: int, jsonl: bool) -> None:
    """Prints the most likely tokens for every mask.

    Args:
        folder: a Hugging Face folder, an export or a work directory.
        sentences: sentences with masks; none, or "-", reads standard input.
        top_k: number of tokens per mask.
        jsonl: prints JSON objects.

    Raises:
        UserError: no sentence is given, a sentence has no mask, or the model has no masked language modeling head.
    """
    if top_k < 1:
        raise UserError(f"--top-k must be at least 1, not {top_k}")
    inputs = list(_sentences(sentences))
    if not inputs:
        raise UserError("no sentence: give one with [MASK] in it, or lines of them on the standard input")
    model, tokenizer, two_streams = load_model(folder, head="mlm")
    _ = choose_mask_mode(model, tokenizer.mask_id, two_streams)  # of the model, before its sentences are looked at
    for sentence, masks in zip(inputs, fill_masks(model, tokenizer, inputs, top_k, two_streams), strict=True):
        print(_json_line(sentence, masks) if jsonl else _format(sentence, masks))


def _sentences(inputs: Sequence[str]) -> list[str]:
    if not inputs and sys.stdin.isatty():
        print("reading sentences, one per line; end with Ctrl-D", file=sys.stderr)
    lines = []
    for sentence in inputs or [STDIN]:
        lines += [line for _, line in read_texts(STDIN) if line.strip()] if sentence == STDIN else [sentence]
    return lines


def _format(sentence: str, masks: Sequence[Sequence[MaskPrediction]]) -> str:
    lines = ["  ".join(f"{filling.token} {filling.probability:.3f}" for filling in mask) for mask in masks]
    numbered = [f"{number}: {line}" for number, line in enumerate(lines, 1)] if len(lines) > 1 else lines
    return "\n".join([sentence, *(f"    {line}" for line in numbered)])


def _json_line(sentence: str, masks: Sequence[Sequence[MaskPrediction]]) -> str:
    masks_json = [[{"token": each.token, "probability": round(each.probability, 6)} for each in mask] for mask in masks]
    return json.dumps({"sentence": sentence, "masks": masks_json}, ensure_ascii=False)
