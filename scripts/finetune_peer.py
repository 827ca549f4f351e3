"""Baseline of finetune_check.py: a task on a Hugging Face folder by `transformers`' Trainer, in its own process.

    python scripts/finetune_peer.py job.json

The job holds kind ("classification" or "tokens"), model, train and eval (JSON lines with text, pair and label, or
tokens and tags), labels, rate, rows, epochs, max_len, seed, type, and the path of {"ended": time.time() after the last
prediction, "predictions": [...], "losses": [...] of the steps}. With "order" the examples come in that order, without
dropout, and the initial weights are saved in the folder "start". Needs torch, transformers, datasets and accelerate,
not bertjax.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from datasets import Dataset, load_dataset


def read(path: str, cache: str) -> Dataset:
    return load_dataset("json", data_files=path, split="train", cache_dir=cache)


def features(job: dict[str, Any], tokenizer: Any, rows: Dataset) -> Dataset:
    """Returns features as run_glue and run_ner of transformers build them."""
    number = {label: index for index, label in enumerate(job["labels"])}

    def texts(batch: dict[str, list[Any]]) -> Any:
        columns = [batch["text"]] + ([batch["pair"]] if "pair" in batch else [])
        results = tokenizer(*columns, truncation=True, max_length=job["max_len"])
        results["labels"] = [number[label] for label in batch["label"]]
        return results

    def words(batch: dict[str, list[Any]]) -> Any:
        results = tokenizer(batch["tokens"], truncation=True, max_length=job["max_len"], is_split_into_words=True)
        results["labels"] = []
        for index, tags in enumerate(batch["tags"]):
            of, current, before = results.word_ids(index), [], None
            for word in of:
                current.append(-100 if word is None or word == before else number[tags[word]])
                before = word
            results["labels"].append(current)
        return results

    make = words if job["kind"] == "tokens" else texts
    return rows.map(make, batched=True, remove_columns=rows.column_names)


def predicted(job: dict[str, Any], scores: np.ndarray, labels: np.ndarray, rows: Dataset) -> list[Any]:
    """Returns labels of texts, or of the words of sentences; truncated words are O."""
    best = scores.argmax(axis=-1)
    if job["kind"] != "tokens":
        return [job["labels"][index] for index in best]
    results = []
    for numbers, gold, tags in zip(best, labels, rows["tags"], strict=True):
        current = [job["labels"][index] for index in numbers[gold != -100]]
        results.append(current + ["O"] * (len(tags) - len(current)))
    return results


class Trainer(transformers.Trainer):
    """Trainer with a given order of examples, which records exact losses."""

    order: list[int] | None = None
    losses: tuple[float, ...] = ()

    def _get_train_sampler(self, *arguments: Any) -> Any:
        return super()._get_train_sampler(*arguments) if self.order is None else self.order

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        results = super().compute_loss(*arguments, **options)
        if self.order is not None:
            self.losses += ((results[0] if isinstance(results, tuple) else results).item(),)
        return results

    def train(self, *arguments: Any, **options: Any) -> Any:
        done = super().train(*arguments, **options)
        self.order = None  # prediction ignores the order
        return done


def main(job: dict[str, Any]) -> None:
    transformers.logging.set_verbosity_error()
    transformers.set_seed(job["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    is_words = job["kind"] == "tokens"
    kind = transformers.AutoModelForTokenClassification if is_words else transformers.AutoModelForSequenceClassification
    collator = transformers.DataCollatorForTokenClassification if is_words else transformers.DataCollatorWithPadding
    rows = {split: read(job[split], job["cache"]) for split in ("train", "eval")}
    inputs = {split: features(job, tokenizer, current) for split, current in rows.items()}
    names = dict(enumerate(job["labels"]))
    more = {"id2label": names, "label2id": {label: number for number, label in names.items()}}
    if "order" in job:
        more |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    model = kind.from_pretrained(job["model"], num_labels=len(job["labels"]), attn_implementation="sdpa", **more)
    if "order" in job:
        model.save_pretrained(job["start"])
        tokenizer.save_pretrained(job["start"])
    updates = -(-len(inputs["train"]) // job["rows"]) * job["epochs"]
    arguments = transformers.TrainingArguments(
        output_dir=job["cache"],
        learning_rate=job["rate"],
        per_device_train_batch_size=job["rows"],
        per_device_eval_batch_size=job["rows"],
        num_train_epochs=job["epochs"],
        warmup_steps=updates // 10,
        weight_decay=0.01,
        max_grad_norm=1.0,
        lr_scheduler_type="linear",
        seed=job["seed"],
        bf16=job["dtype"] == "bfloat16",
        use_cpu=job["cpu"],
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=inputs["train"], data_collator=collator(tokenizer))
    trainer.order = job.get("order")
    trainer.train()
    text = trainer.predict(inputs["eval"])
    results = predicted(job, text.predictions, text.label_ids, rows["eval"])
    Path(job["out"]).write_text(json.dumps({"ended": time.time(), "predictions": results, "losses": trainer.losses}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
