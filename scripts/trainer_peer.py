"""Baseline of end_to_end.py and recipe_value.py: a text file through `datasets` and Trainer, in its own process.

    python scripts/trainer_peer.py job.json

The job holds text, tokenizer, sizes, form, type, rows, tokens, steps, and the path of {"ended": time.time() at the end
of the last step, "real_tokens": ...}. Needs torch, transformers, datasets and accelerate, not bertjax. Forms: "group"
joins the tokens of all lines and cuts them into full sequences, "lines" makes one sequence per line, padded by the
collator to the longest of its batch. `arguments` replaces TrainingArguments, `save` is a folder for the trained model,
and `seconds` is given instead of `steps`: as many as fit, by the time of the first ones, whose model is thrown away.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset, load_dataset

TIMED_STEPS = 15


def rows_of(job: dict[str, Any], tokenizer: Any) -> Dataset:
    """Returns the text tokenized by `datasets.map`, as the examples of transformers do it."""
    lines = load_dataset("text", data_files=job["text"], split="train", cache_dir=job["cache"])
    lines = lines.filter(lambda text: [bool(line.strip()) for line in text], batched=True, input_columns="text")
    length = job["seq_len"]

    def tokenize(batch: dict[str, list[str]]) -> Any:
        cut = job["form"] == "lines"
        return tokenizer(batch["text"], truncation=cut, max_length=length if cut else None)

    results = lines.map(tokenize, batched=True, remove_columns=["text"])
    if job["form"] == "lines":
        return results

    def group(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [token for example in examples for token in example] for name, examples in batch.items()}
        end = len(joined["input_ids"]) // length * length
        return {name: [all_of[at : at + length] for at in range(0, end, length)] for name, all_of in joined.items()}

    return results.map(group, batched=True)


class Counting:
    """A collator that counts the real tokens of every batch."""

    def __init__(self, collate: Any):
        self.collate = collate
        self.counts: list[int] = []

    def __call__(self, examples: list[Any]) -> Any:
        batch = self.collate(examples)
        self.counts.append(int(batch["attention_mask"].sum()))
        return batch


class Clock(transformers.TrainerCallback):
    """Records the ends of the steps, of the last one after waiting for the device."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == state.max_steps and torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.time())


def model_of(job: dict[str, Any]) -> Any:
    config = transformers.BertConfig(**job["model"])
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")


def train(job: dict[str, Any], steps: int) -> tuple[Any, Counting, Clock]:
    """Returns the model after so many steps, and what was counted and timed on the way."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["tokenizer"])
    collate = Counting(transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15))
    clock = Clock()
    arguments = {
        "learning_rate": 1e-4,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "bf16": job["dtype"] == "bfloat16",
        "torch_compile": job["compile"],
    } | job.get("arguments", {})
    trainer = transformers.Trainer(
        model=model_of(job),
        args=transformers.TrainingArguments(
            output_dir=job["cache"],
            max_steps=steps,
            per_device_train_batch_size=job["rows"],
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=rows_of(job, tokenizer),
        data_collator=collate,
        callbacks=[clock],
    )
    trainer.train()
    return trainer.model, collate, clock


def main(job: dict[str, Any]) -> None:
    transformers.logging.set_verbosity_error()
    steps = job.get("steps")
    if steps is None:
        ends = train(job, TIMED_STEPS)[2].ends
        steps = int(job["seconds"] / ((ends[-1] - ends[TIMED_STEPS // 3]) / (TIMED_STEPS - 1 - TIMED_STEPS // 3)))
    model, collate, clock = train(job, steps)
    if "save" in job:
        model.save_pretrained(job["save"])
        transformers.AutoTokenizer.from_pretrained(job["tokenizer"]).save_pretrained(job["save"])
    real = sum(collate.counts[:steps])  # the loader is ahead
    outcome = {"ended": clock.ends[-1], "seconds": clock.ends[-1] - clock.ends[0], "steps": steps, "real_tokens": real}
    Path(job["out"]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
