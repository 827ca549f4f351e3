"""Baseline of end_to_end.py: a text file through `datasets` and `transformers`' Trainer, in its own process.

    python scripts/trainer_peer.py job.json

The job holds text, tokenizer, sizes, form, type, rows, tokens, steps, and the path of {"ended": time.time() at the end
of the last step, "real_tokens": ...}. Needs torch, transformers, datasets and accelerate, not bertjax. Forms: "group"
joins the tokens of all lines and cuts them into full sequences, "lines" makes one sequence per line, padded by the
collator to the longest of its batch.
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
    """Records the end of the last step, after waiting for the device."""

    ended = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == state.max_steps:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.ended = time.time()


def model_of(job: dict[str, Any]) -> Any:
    config = transformers.BertConfig(**job["model"])
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")


def main(job: dict[str, Any]) -> None:
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["tokenizer"])
    collate = Counting(transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15))
    clock = Clock()
    arguments = transformers.TrainingArguments(
        output_dir=job["cache"],
        max_steps=job["steps"],
        per_device_train_batch_size=job["rows"],
        learning_rate=1e-4,
        weight_decay=0.01,
        max_grad_norm=1.0,
        bf16=job["dtype"] == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        torch_compile=job["compile"],
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    transformers.Trainer(
        model=model_of(job),
        args=arguments,
        train_dataset=rows_of(job, tokenizer),
        data_collator=collate,
        callbacks=[clock],
    ).train()
    real = sum(collate.counts[: job["steps"]])  # the loader is ahead
    Path(job["out"]).write_text(json.dumps({"ended": clock.ended, "real_tokens": real}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
