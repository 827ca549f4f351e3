"""Work directories without a run: a config, metrics and probes in the format of a run."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)> & \"quoted\" [MASK] ]]>"
"""Text that becomes markup if it is written without escapes."""
VOID = {"meta", "link", "br", "img", "input", "path", "hr", "wbr"}


def config(**changes: Any) -> dict[str, Any]:
    """Returns the keys of a config.json that the report reads."""
    result: dict[str, Any] = {
        "seed": 0,
        "model": {"preset": "bert-tiny", "num_layers": 2, "hidden_size": 32, "num_heads": 4},
        "objective": {"name": "mlm", "masking": "token", "mask_rate": 0.15, "pair": "none"},
        "data": {"sources": ["text:a.txt"], "eval_sources": [], "example_format": "block", "seq_len": 32},
        "train": {"num_steps": 100, "batch_size": 8, "phases": [], "initial_batch_size": None},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "schedule": {"name": "linear"},
        "eval": {"fill_mask": ["a [MASK]."], "num_batches": 2, "batch_size": 8},
    }
    for key, value in changes.items():
        group, _, leaf = key.partition("__")
        if leaf:
            result[group] = {**result[group], leaf: value}
        else:
            result[group] = value
    return result


def train_line(step: int, **more: float | None) -> dict[str, Any]:
    return {
        "step": step,
        "train/loss": 7 - 2 * (1 - math.exp(-step / 40)),
        "train/mlm_loss": 7 - 2 * (1 - math.exp(-step / 40)),
        "train/mlm_accuracy": 0.2 * step / 100,
        "train/grad_norm": 1 + 5 / step,
        "train/padding": 0.25,
        "train/tokens_per_second": 1e4 + step,
        "train/seconds_per_step": 0.5,
        "train/eta_seconds": 3.0,
        "train/data_wait": 0.01,
        "train/learning_rate": 1e-3 * step / 100,
        **more,
    }


def eval_line(step: int, loss: float, **more: float | None) -> dict[str, Any]:
    return {
        "step": step,
        "eval/loss": loss,
        "eval/mlm_loss": loss,
        "eval/mlm_accuracy": 0.1,
        "eval/mlm_unigram_loss": 6.5,
        **more,
    }


def usual_lines(steps: int = 100) -> list[dict[str, Any]]:
    lines = []
    for step in range(1, steps + 1):
        lines.append(train_line(step))
        if step % (steps // 4) == 0:
            lines.append(eval_line(step, 7 - step / steps))
    return lines


def attention(tokens: Sequence[str], layers: int = 2, heads: int = 3, step: int = 100) -> dict[str, Any]:
    size = len(tokens)
    bytes_of = [bytes((17 * index + 5 * head) % 256 for index in range(size * size)) for head in range(heads)]
    maps = [[base64.b64encode(each).decode() for each in bytes_of] for _ in range(layers)]
    return {"step": step, "kind": "attention", "tokens": list(tokens), "layers": layers, "heads": heads, "maps": maps}


def usual_probes(sentence: str = "the [MASK] sat.") -> list[dict[str, Any]]:
    run = {
        "step": 0,
        "kind": "run",
        "parameters": {"model": 123456},
        "devices": "1 x cpu",
        "jax": "0.0",
        "tokens": 5000,
        "phases": [{"start": 0, "slots": 256, "flops": 1e6}],
    }
    result = [run]
    for step in (25, 50, 75, 100):
        tokens = [["the", 0.5], [EVIL if step == 50 else "cat", 0.25]]
        result.append({"step": step, "kind": "fill_mask", "sentence": sentence, "tokens": tokens})
        result.append({"step": step, "kind": "memory", "host": 10**9 + step, "peak_host": 2 * 10**9})
    result.append(attention(["[CLS]", "the", EVIL, "[SEP]"]))
    result.append({"step": 100, "kind": "neighbors", "token": "cat", "near": [["dog", 0.9], ["bird", 0.5]]})
    return result


def task_probes() -> list[dict[str, Any]]:
    return [
        {"step": 100, "kind": "confusion", "labels": ["no", EVIL], "counts": [[8, 2], [1, 9]]},
        {
            "step": 100,
            "kind": "classes",
            "rows": [{"label": "no", "precision": 0.89, "recall": 0.8, "f1": 0.84, "support": 10}],
        },
        {"step": 100, "kind": "reliability", "bins": [[0.55, 0.45, 30], [0.9, 0.95, 70]]},
        {
            "step": 100,
            "kind": "seeds",
            "rows": [{"seed": seed, "scores": {"accuracy": 0.8 + seed / 100}} for seed in range(3)],
        },
        {"step": 100, "kind": "pseudo_labels", "kept": 80, "of": 100, "threshold": 0.9, "agreement": 0.95, "rows": []},
        {
            "step": 100,
            "kind": "lr_finder",
            "rates": [10**-power for power in (6, 5, 4, 3, 2)],
            "losses": [3.0, 2.9, 2.0, 1.5, None],
            "suggestion": 1e-4,
        },
    ]


def write_workdir(
    folder: Path,
    lines: Sequence[Mapping[str, Any]] = (),
    probes: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config() if settings is None else settings))
    if lines:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if probes:
        (folder / "probes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in probes))
    return folder


class Document(HTMLParser):
    """A parsed page: its elements with their attributes and text; raises if start and end tags do not match."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, (tag, self._open)
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.elements if "id" in attributes]

    @property
    def text(self) -> str:
        return " ".join(part for parts in self.texts.values() for part in parts)
