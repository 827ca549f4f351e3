"""Baseline of finetune_check.py: a task on a Hugging Face folder by `transformers`' Trainer, in its own process.

    python scripts/finetune_peer.py job.json

The job holds kind ("classification", "tokens", "multilabel", "multiple_choice" or "qa"), model, train and eval (JSON
lines with text, pair and label; tokens and tags; context, question, choices and label; SQuAD's columns), labels, rate,
rows, epochs, max_len, stride, truncation, seed, dtype, and the path of {"ended": time.time() after the last prediction,
"predictions": [...] (of multilabel probabilities, of qa answers by id), "losses": [...] of the steps}. With "order" the
examples come in that order, without dropout, and the initial weights are saved in the folder "start". Needs torch,
transformers, datasets and accelerate, not bertjax.
"""

from __future__ import annotations

import collections
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


MODELS = {
    "tokens": transformers.AutoModelForTokenClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
    "multiple_choice": transformers.AutoModelForMultipleChoice,
}
COLLATORS = {
    "tokens": transformers.DataCollatorForTokenClassification,
    "multiple_choice": transformers.DataCollatorForMultipleChoice,
}


def features(job: dict[str, Any], tokenizer: Any, rows: Dataset) -> Dataset:
    """Returns features as run_glue, run_ner, run_swag and run_qa of transformers build them."""
    number = {label: index for index, label in enumerate(job["labels"])}
    cut: dict[str, Any] = {"truncation": job["truncation"], "max_length": job["max_len"]}

    def texts(batch: dict[str, list[Any]]) -> Any:
        columns = [batch["text"]] + ([batch["pair"]] if "pair" in batch else [])
        results = tokenizer(*columns, **cut)
        if job["kind"] == "multilabel":
            results["labels"] = [[float(label in row) for label in job["labels"]] for row in batch["label"]]
        else:
            results["labels"] = [number[label] for label in batch["label"]]
        return results

    def words(batch: dict[str, list[Any]]) -> Any:
        results = tokenizer(batch["tokens"], is_split_into_words=True, **cut)
        results["labels"] = []
        for index, tags in enumerate(batch["tags"]):
            of, current, before = results.word_ids(index), [], None
            for word in of:
                current.append(-100 if word is None or word == before else number[tags[word]])
                before = word
            results["labels"].append(current)
        return results

    def choices(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        results: dict[str, list[Any]] = collections.defaultdict(list)
        for context, question, options in zip(batch["context"], batch["question"], batch["choices"], strict=True):
            current = tokenizer([context] * len(options), [f"{question} {each}" for each in options], **cut)
            for name, values in current.items():
                results[name].append(values)
        return {**results, "labels": batch["label"]}

    def spans(batch: dict[str, list[Any]]) -> Any:
        results = tokenizer(
            batch["question"],
            batch["context"],
            truncation="only_second",
            max_length=job["max_len"],
            stride=job["stride"],
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        results["example"] = [batch["id"][index] for index in results.pop("overflow_to_sample_mapping")]
        gold = dict(zip(batch["id"], batch["answers"], strict=True))
        results["start_positions"], results["end_positions"] = [], []
        for window, offsets in enumerate(results["offset_mapping"]):
            answer = gold[results["example"][window]]
            start = answer["answer_start"][0]
            inside = [
                index
                for index, side in enumerate(results.sequence_ids(window))
                if side == 1 and offsets[index][1] > start and offsets[index][0] < start + len(answer["text"][0])
            ]
            whole = inside and offsets[inside[0]][0] <= start
            whole = whole and offsets[inside[-1]][1] >= start + len(answer["text"][0])
            results["start_positions"].append(inside[0] if whole else 0)
            results["end_positions"].append(inside[-1] if whole else 0)
            results["offset_mapping"][window] = [
                pair if side == 1 else (-1, -1)
                for pair, side in zip(offsets, results.sequence_ids(window), strict=True)
            ]
        return results

    make = {"tokens": words, "multiple_choice": choices, "qa": spans}.get(job["kind"], texts)
    return rows.map(make, batched=True, remove_columns=rows.column_names)


def predicted(job: dict[str, Any], results: Any, inputs: Dataset, rows: Dataset) -> Any:
    """Returns labels of texts, or of the words of sentences (truncated words are O), probabilities, or answers."""
    if job["kind"] == "qa":
        return answers(results.predictions, inputs, rows)
    scores, labels = results.predictions, results.label_ids
    if job["kind"] == "multilabel":
        return (1.0 / (1.0 + np.exp(-scores))).tolist()
    best = scores.argmax(axis=-1)
    if job["kind"] == "multiple_choice":
        return best.tolist()
    if job["kind"] != "tokens":
        return [job["labels"][index] for index in best]
    tagged = []
    for numbers, gold, tags in zip(best, labels, rows["tags"], strict=True):
        current = [job["labels"][index] for index in numbers[gold != -100]]
        tagged.append(current + ["O"] * (len(tags) - len(current)))
    return tagged


def answers(logits: Any, inputs: Dataset, rows: Dataset) -> dict[str, str]:
    """Returns the span of at most 30 tokens with the highest sum among the 20 best starts and ends of every window."""
    contexts = dict(zip(rows["id"], rows["context"], strict=True))
    best = dict.fromkeys(contexts, (-np.inf, ""))
    for example, offsets, starts, ends in zip(inputs["example"], inputs["offset_mapping"], *logits, strict=True):
        inside = [index for index, (begin, _) in enumerate(offsets) if begin >= 0]
        firsts, lasts = (sorted(inside, key=lambda index: -side[index])[:20] for side in (starts, ends))
        for first in firsts:
            for last in lasts:
                total = starts[first] + ends[last]
                if first <= last < first + 30 and total > best[example][0]:
                    best[example] = total, contexts[example][offsets[first][0] : offsets[last][1]]
    return {name: text for name, (_, text) in best.items()}


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
    kind = MODELS.get(job["kind"], transformers.AutoModelForSequenceClassification)
    collator = COLLATORS.get(job["kind"], transformers.DataCollatorWithPadding)
    rows = {split: read(job[split], job["cache"]) for split in ("train", "eval")}
    inputs = {split: features(job, tokenizer, current) for split, current in rows.items()}
    more: dict[str, Any] = {"attn_implementation": "sdpa"}
    if job["labels"]:
        names = dict(enumerate(job["labels"]))
        more |= {"id2label": names, "label2id": {label: number for number, label in names.items()}}
        more |= {"num_labels": len(names)}
    if job["kind"] == "multilabel":
        more |= {"problem_type": "multi_label_classification"}
    if "order" in job:
        more |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    model = kind.from_pretrained(job["model"], **more)
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
    results = predicted(job, text, inputs["eval"], rows["eval"])
    Path(job["out"]).write_text(json.dumps({"ended": time.time(), "predictions": results, "losses": trainer.losses}))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
