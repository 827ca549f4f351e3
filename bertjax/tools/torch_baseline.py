"""The baseline of the benchmark: a `transformers` model trained in PyTorch on the same text. Imported without jax.

It trains as a careful user would: scaled-dot-product attention, fused AdamW, bfloat16 and torch.compile where a trial
shows that they are faster, the library's tokenizer and collator, one example per sequence, padded to the longest.

It runs in a process with its threads and memory (`TorchProcess`), controlled by lines of JSON. The examples of a run
are sent before it begins, and its time is measured in that process.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bertjax.errors import UserError
from bertjax.io.stderr import note
from bertjax.tools.interleaved_timing import TimedRun

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


Example = dict[str, np.ndarray]
SECONDS_TO_END = 30.0
_PACKAGES = str(Path(__file__).resolve().parents[2])
_COMMAND = f"import sys; sys.path.insert(0, {_PACKAGES!r}); from bertjax.tools.torch_baseline import serve; serve()"


class TorchProcess:
    """Client of the process. Close it at the end.

    Args:
        folder: exported model and tokenizer.
        auto_class: class of `transformers`.
        examples: training examples, taken as the baseline needs them.
        config: training parameters.
    """

    def __init__(self, folder: Path, auto_class: str, examples: Iterator[Example], config: BaselineConfig):
        self._examples, self._batch_size = examples, config.batch_size
        command = [sys.executable, "-c", _COMMAND, str(folder), auto_class, json.dumps(config._asdict())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions, self.device, self.attention = self._read()
        self.mode = RunMode(False, False)

    def choose_mode(self, with_bfloat16: bool, with_compile: bool) -> list[TrialResult]:
        """Tries the modes, switches to the fastest and returns all results; raises `UserError` if none runs."""
        trials = [self._try(RunMode(False, False))]
        if with_bfloat16:
            trials.append(self._try(RunMode(True, False)))
        if with_compile:
            trials.append(self._try(RunMode(fastest_trial(trials).mode.bfloat16, True)))
        best = fastest_trial(trials)
        if best.error:
            raise UserError(f"--baseline hf: {self.versions} cannot train this model here: {best.error}")
        self._call("use", 0, list(best.mode))
        self.mode = best.mode
        return trials

    def _try(self, mode: RunMode) -> TrialResult:
        note(f"transformers: trying {mode}")
        seconds, error = self._call("trial", TorchBaseline.TRIAL_TOTAL, list(mode))
        return TrialResult(mode, seconds, error)

    def run(self, steps: int) -> TimedRun:
        """Trains `steps` steps in the process and returns their time."""
        return TimedRun(*self._call("run", steps, steps))

    def _call(self, name: str, steps: int, argument: Any) -> Any:
        """Sends a request with the examples of `steps` steps; returns the response."""
        taken = itertools.islice(self._examples, steps * self._batch_size)
        examples = [{name: np.asarray(value).tolist() for name, value in example.items()} for example in taken]
        assert self._process.stdin is not None
        try:
            print(json.dumps([name, examples, argument]), file=self._process.stdin, flush=True)
        except OSError:
            self._raise_ended()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            self._raise_ended()
        response = json.loads(line)
        if "error" in response:
            raise UserError(response["error"])
        return response["result"]

    def _raise_ended(self) -> NoReturn:
        code = self._process.wait(SECONDS_TO_END)
        raise UserError(f"--baseline hf: its process ended (exit code {code}); is there memory for both?")

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Serves requests from standard input until it ends."""
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print
    folder, auto_class, config = sys.argv[1:]

    def respond(key: str, value: Any) -> None:
        print(json.dumps({key: value}), file=responses, flush=True)

    try:
        baseline = TorchBaseline(Path(folder), auto_class, BaselineConfig(**json.loads(config)))
    except UserError as error:
        respond("error", str(error))
        return
    respond("result", [baseline.versions, baseline.device, baseline.attention])
    for line in sys.stdin:
        name, examples, argument = json.loads(line)
        baseline.feed(examples)
        if name == "run":
            respond("result", baseline.run(argument))
        elif name == "trial":
            respond("result", baseline.trial(RunMode(*argument))[1:])
        else:
            baseline.mode = RunMode(*argument)
            respond("result", None)
