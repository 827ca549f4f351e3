"""The other side: the same weights, text and batch through PyTorch and `transformers`, in the fastest way found here.

It trains as a careful user of theirs would: scaled-dot-product attention, fused AdamW, bfloat16 and torch.compile where
a trial says that they pay, their own tokenizer and collator, every example a row of its own, padded to the longest.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.benchmark.interleaved_timing import TimedRun
from bertjax.errors import UserError

WARMUP_STEPS, TRIAL_STEPS = 2, 3


class BaselineConfig(NamedTuple):
    """What the step needs of a config; `weight_decay` and the rate are constant."""

    rows: int
    masked: bool  # masked words, else the next one
    mask_rate: float
    learning_rate: float
    weight_decay: float
    clip_norm: float  # 0 = no clipping
    seed: int


class RunMode(NamedTuple):
    """One way to run the step."""

    bfloat16: bool
    compiled: bool

    def __str__(self) -> str:
        return f"{'bfloat16 autocast' if self.bfloat16 else 'float32'}, {'compiled' if self.compiled else 'eager'}"


class TrialResult(NamedTuple):
    """How long a setting's step took, or why it did not run."""

    setting: RunMode
    seconds: float
    fault: str = ""


def fastest_trial(trials: Sequence[TrialResult]) -> TrialResult:
    return min(trials, key=lambda trial: trial.seconds)


class TorchBaseline:
    """A model of `transformers` from a folder that we exported; it trains on what it is fed."""

    STEPS_OF_A_TRIAL = WARMUP_STEPS + TRIAL_STEPS

    def __init__(self, folder: Path, auto_class: str, recipe: BaselineConfig):
        try:
            import torch
            import transformers
        except ImportError as error:
            raise UserError(
                f"--baseline hf needs torch and transformers: pip install 'bertjax[benchmark]' ({error})"
            ) from error
        self._torch, self._recipe = torch, recipe
        self.versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.manual_seed(recipe.seed)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = _load(getattr(transformers, auto_class), folder).to(self.device).train()
        self.attention = self._model.config._attn_implementation
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._collate = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm=recipe.masked, mlm_probability=recipe.mask_rate
        )
        self._examples: deque[dict[str, Any]] = deque()
        self._compiled: Any = None
        self.setting = RunMode(False, False)

    def feed(self, examples: Iterable[dict[str, Any]]) -> None:
        """Examples for the steps to come."""
        self._examples.extend(examples)

    def use(self, setting: RunMode) -> None:
        """From now on steps run in this way."""
        self.setting = setting

    def trial(self, setting: RunMode) -> TrialResult:
        """Takes `STEPS_OF_A_TRIAL` steps in one way."""
        self.setting = setting
        try:
            self.run(WARMUP_STEPS)  # compiles, warms up
            return TrialResult(setting, self.run(TRIAL_STEPS).seconds_per_step)
        except Exception as error:  # no compiler, an operation without a kernel: whatever it is, this way is closed
            self._examples.clear()
            return TrialResult(setting, float("inf"), f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")

    def run(self, steps: int) -> TimedRun:
        """As a turn of ours; making a batch is part of the step, as in their loop."""
        real = slots = 0
        waited = 0.0
        began = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = self._batch()
            waited += time.perf_counter() - asked
            real += int(batch["attention_mask"].sum())
            slots += batch["input_ids"].numel()
            self._step({name: value.to(self.device) for name, value in batch.items()})
        if self.device == "cuda":
            self._torch.cuda.synchronize()
        return TimedRun(steps, time.perf_counter() - began, real, slots, waited)

    def _batch(self) -> Any:
        examples = []
        for _ in range(min(self._recipe.rows, len(self._examples))):
            example = self._examples.popleft()
            feature: dict[str, Any] = {"input_ids": example["input_ids"]}
            if "pair_labels" in example:
                feature["token_type_ids"] = example["token_type_ids"]
                feature["next_sentence_label"] = example["pair_labels"]
            examples.append(feature)
        return self._collate(examples)

    def _step(self, batch: dict[str, Any]) -> None:
        torch, model = self._torch, self._model
        if self.setting.compiled:
            if self._compiled is None:
                self._compiled = torch.compile(model, dynamic=True)
            model = self._compiled
        with torch.autocast(self.device, torch.bfloat16, enabled=self.setting.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        if self._recipe.clip_norm > 0.0:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._recipe.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def _load(auto_class: Any, folder: Path) -> Any:
    """With fused attention where the class has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return auto_class.from_pretrained(folder, attn_implementation="sdpa")
        except ValueError:  # a class without it says so in this way
            return auto_class.from_pretrained(folder, attn_implementation="eager")
