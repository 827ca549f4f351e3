"""Explanations as records: the scores of the words of each input (`bertjax explain`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, named, require_one_of
from bertjax.hf.pretrained import PretrainedModel
from bertjax.inference.attributions import METHODS, STEPS, TOLERANCE, Attribution, Attributor, Readout
from bertjax.inference.explained import Explained

BASELINES = ("pad", "mask", "zero", "remove")

Explanation = dict[str, Any]


class Explainer:
    """Makes a record of each input.

    A record holds `target`, the class, tag, answer or token that is explained, null where a model computes one number;
    `word`, whose tag it is; `score`, the logit of the target (of answers the sum of start and end, of similarities the
    cosine); `method`, `baseline`, `steps`, `completeness_error`; and `words`: [{word, field, start, end, score}], with
    the characters [start, end) of the text in `field`.

    Args:
        model: a model that reads both sides of a word, float32.
        tokenizer: its tokenizer.
        readout: what is explained.
        method: one of `METHODS`.
        baseline: what replaces words: pad or mask: the embedding of that token; zero; remove: nothing, the text is
            shorter. None: pad, or of leave-one-out remove, and mask where what is explained has a position.
        steps: steps of integrated gradients, at first.
        tokens: token slots of a batch.

    Raises:
        UserError: the method has no such baseline, or the tokenizer lacks its token.
    """

    def __init__(
        self,
        model: PretrainedModel,
        tokenizer: Tokenizer,
        readout: Readout,
        method: str = METHODS[0],
        baseline: str | None = None,
        steps: int = STEPS,
        tokens: int = 8192,
    ) -> None:
        self.method, self.steps = method, steps
        self.baseline = choose_baseline(method, baseline, readout, tokenizer)
        ids = {"pad": tokenizer.pad_id, "mask": tokenizer.mask_id}
        table = model.params["encoder"]["embeddings"]["word_embeddings"]["embedding"]
        row = table[ids[self.baseline]] if self.baseline in ids else None
        self._attributor = Attributor(model, readout, None if row is None else np.asarray(row, np.float32), tokens)
        self.num_inexact, self.largest_error, self._count = 0, 0.0, 0

    @property
    def notes(self) -> list[str]:
        """Remark on sums of scores that miss the change which they explain."""
        if not self.num_inexact:
            return []
        return [
            f"{self.num_inexact:,} of {self._count:,} have a completeness error above {TOLERANCE:.0%}, at most "
            f"{self.largest_error:.1%}: do not read their small scores"
        ]

    def __call__(self, items: Sequence[Explained], ids: Sequence[Any]) -> list[Explanation]:
        """Returns the records of inputs, in their order."""
        attributions = iter(self._attribute(items))
        records = []
        for item, name in zip(items, ids, strict=True):
            parts = list(itertools.islice(attributions, len(item.parts)))
            records.append({"id": name, **self._record(item, parts)})
        return records

    def _attribute(self, items: Sequence[Explained]) -> list[Attribution]:
        windows = [part.window for item in items for part in item.parts]
        attributor = self._attributor
        if self.method == "integrated-gradients":
            return attributor.integrated_gradients(windows, self.steps)
        if self.method == "gradient-x-input":
            return attributor.gradient_x_input(windows)
        if self.method == "attention-rollout":
            return attributor.attention_rollout(windows)
        if self.baseline != "remove":
            return attributor.leave_one_out(windows)
        shortened = [windows for item in items if item.shorten is not None for windows in item.shorten()]
        return attributor.leave_one_out(windows, shortened)

    def _record(self, item: Explained, parts: Sequence[Attribution]) -> Explanation:
        record: Explanation = {"target": item.target, "score": _rounded(parts[0].score), "method": self.method}
        record |= {} if item.word is None else {"word": item.word.text}
        record |= {} if self.baseline is None else {"baseline": self.baseline}
        errors = [part.completeness_error for part in parts if part.completeness_error is not None]
        if errors:
            self._count += 1
            self.num_inexact += max(errors) > TOLERANCE
            self.largest_error = max(self.largest_error, *errors)
            record |= {"steps": max(part.steps or 0 for part in parts), "completeness_error": _rounded(max(errors))}
        record["words"] = [
            {"word": word.text, "field": word.field, "start": word.start, "end": word.end, "score": _rounded(score)}
            for window, part in zip(item.parts, parts, strict=True)
            for word, score in zip(window.words, part.words.tolist(), strict=True)
        ]
        return record


def choose_baseline(method: str, requested: str | None, readout: Readout, tokenizer: Tokenizer) -> str | None:
    """Returns what replaces words; None for methods that replace none. Args and errors: as of `Explainer`."""
    require_one_of("method", method, METHODS)
    replaces, is_left_out = method in ("integrated-gradients", "leave-one-out"), method == "leave-one-out"
    if requested is None:
        if not replaces:
            return None
        moves = readout.head in ("", "sequence_classification")
        order = (["remove"] if moves else ["mask", "pad"]) if is_left_out else ["pad"]
        has = {"remove": True, "mask": tokenizer.mask_id >= 0, "pad": tokenizer.pad_id >= 0}
        return next((name for name in order if has[name]), "zero")
    require_one_of("baseline", requested, BASELINES)
    setting = named("baseline", requested)
    if not replaces:
        raise UserError(f"{setting}: {method} has no baseline; leave it out")
    if requested == "remove" and not is_left_out:
        raise UserError(f"{setting} is for leave-one-out; {method} needs pad, mask or zero")
    if requested == "remove" and readout.head not in ("", "sequence_classification"):
        raise UserError(f"{setting}: without a word the explained position would move; give mask, pad or zero")
    if {"pad": tokenizer.pad_id, "mask": tokenizer.mask_id}.get(requested, 0) < 0:
        raise UserError(f"{setting}: the tokenizer of this model has no such token; give zero")
    return requested


def _rounded(value: float) -> float:
    return round(float(value), 6)
