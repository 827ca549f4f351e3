"""The baseline of the benchmark: a `transformers` model trained in PyTorch on the same text. Imported without jax.

It trains as a careful user would: scaled-dot-product attention, fused AdamW, bfloat16 and torch.compile where a trial
shows that they are faster, the library's tokenizer and collator, one example per sequence, padded to the longest.
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
SLOW_STEP = 2.0  # seconds, from which a trial is one step


class BaselineConfig(NamedTuple):
    """Training parameters; learning rate and weight decay are constant.

    masked     masked language modeling; False = causal
    clip_norm  0 = no clipping
    """

    batch_size: int
    masked: bool
    mask_rate: float
    learning_rate: float
    weight_decay: float
    clip_norm: float
    seed: int


class RunMode(NamedTuple):
    """Precision and compilation of the step."""

    bfloat16: bool
    compiled: bool

    def __str__(self) -> str:
        return f"{'bfloat16 autocast' if self.bfloat16 else 'float32'}, {'compiled' if self.compiled else 'eager'}"


class TrialResult(NamedTuple):
    """Seconds per step of a mode, or why it did not run."""

    mode: RunMode
    seconds: float
    error: str = ""


def fastest_trial(trials: Sequence[TrialResult]) -> TrialResult:
    """Returns the trial with the fewest seconds."""
    return min(trials, key=lambda trial: trial.seconds)


class TorchBaseline:
    """Trains a `transformers` model from an exported folder on the examples that it is fed.

    Args:
        folder: export of `save_pretrained` with a tokenizer.
        auto_class: class of `transformers`, such as `AutoModelForMaskedLM`.
        config: training parameters.

    Raises:
        UserError: torch or transformers is not installed.
    """

    TRIAL_TOTAL = WARMUP_STEPS + TRIAL_STEPS

    def __init__(self, folder: Path, auto_class: str, config: BaselineConfig):
        try:
            import torch
            import transformers
        except ImportError as error:
            raise UserError(
                f"--baseline hf needs torch and transformers: pip install 'bertjax[benchmark]' ({error})"
            ) from error
        self._torch, self._config = torch, config
        self.versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.manual_seed(config.seed)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = _load(getattr(transformers, auto_class), folder).to(self.device).train()
        self.attention = self._model.config._attn_implementation
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._collate = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm=config.masked, mlm_probability=config.mask_rate
        )
        self._examples: deque[dict[str, Any]] = deque()
        self._compiled: Any = None
        self.mode = RunMode(False, False)

    def feed(self, examples: Iterable[dict[str, Any]]) -> None:
        """Adds examples for the next steps."""
        self._examples.extend(examples)

    def trial(self, mode: RunMode) -> TrialResult:
        """Takes at most `TRIAL_TOTAL` steps in a mode, and stays in it."""
        self.mode = mode
        try:
            warm = [self.run(1) for _ in range(WARMUP_STEPS)][-1]
            return TrialResult(mode, self.run(1 if warm.seconds > SLOW_STEP else TRIAL_STEPS).seconds_per_step)
        except Exception as error:  # no compiler, no kernel for an operation: whatever it is, this mode is unusable
            self._examples.clear()
            return TrialResult(mode, float("inf"), f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")

    def run(self, steps: int) -> TimedRun:
        """Trains; making a batch is part of the step, as in `transformers`."""
        real_tokens = slots = 0
        data_wait = 0.0
        began = time.perf_counter()
        for _ in range(steps):
            requested = time.perf_counter()
            batch = self._batch()
            data_wait += time.perf_counter() - requested
            real_tokens += int(batch["attention_mask"].sum())
            slots += batch["input_ids"].numel()
            self._step({name: value.to(self.device) for name, value in batch.items()})
        if self.device == "cuda":
            self._torch.cuda.synchronize()
        return TimedRun(steps, time.perf_counter() - began, real_tokens, slots, data_wait)

    def _batch(self) -> Any:
        features = []
        for _ in range(min(self._config.batch_size, len(self._examples))):
            example = self._examples.popleft()
            feature: dict[str, Any] = {"input_ids": example["input_ids"]}
            if "pair_labels" in example:
                feature["token_type_ids"] = example["token_type_ids"]
                feature["next_sentence_label"] = example["pair_labels"]
            features.append(feature)
        return self._collate(features)

    def _step(self, batch: dict[str, Any]) -> None:
        torch, model = self._torch, self._model
        if self.mode.compiled:
            if self._compiled is None:
                self._compiled = torch.compile(model, dynamic=True)
            model = self._compiled
        with torch.autocast(self.device, torch.bfloat16, enabled=self.mode.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        if self._config.clip_norm > 0.0:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def _load(auto_class: Any, folder: Path) -> Any:
    """Loads the model, with fused attention where the class has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return auto_class.from_pretrained(folder, attn_implementation="sdpa")
        except ValueError:  # the class does not have it
            return auto_class.from_pretrained(folder, attn_implementation="eager")
