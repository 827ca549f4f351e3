"""`probes.jsonl`: what was seen of a model on the way, one JSON object a line, beside `metrics.jsonl`.

Every line has `step` and `kind`; what else it has, its kind says:

    run           parameters {network: n}, sizes, devices, jax, tokens, rows, stages [{start, slots, flops}]: of a step
    memory        host, peak_host and, where the device tells, device, peak_device: bytes
    fill_mask     sentence, pieces [[piece, probability], ...]
    attention     tokens [t], layers, heads, maps [layers][heads] base64 of uint8 [t, t]: shares * 255, rows the lookers
    neighbours    piece, near [[piece, cosine], ...]
    confusion     labels [k], counts [k][k]: rows what is right, columns what was said
    classes       rows [{label, precision, recall, f1, support}]
                  both may have set, of which data or weights, and of_step, of which update if not of `step`
    seeds         rows [{seed, scores {name: value}}]
    labels_kept   kept, of, threshold, agreement (None = no gold sample), rows [{label, kept, of, agreement}]
    rate_finder   rates, losses, suggestion
    note          text: why something is not shown
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.io import atomic
from bertjax.io.jsonl import read_log, to_line

FILE = "probes.jsonl"
Record = dict[str, Any]


class Journal:
    """The file of a work folder, for whoever adds to it: opened at `step`, it drops the lines of later ones."""

    def __init__(self, workdir: Path, step: int):
        self._path, self._last = workdir / FILE, step
        self._keep(step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """The `run` line, which stands first and replaces the one that was there."""
        self._keep(self._last, facts)

    def forget(self, step: int) -> None:
        """Drops what was seen at `step` and later: it is about to be seen again."""
        if self._last >= step:
            self._keep(step - 1)

    def write(self, step: int, kind: str, **fields: Any) -> None:
        """Adds a line; a step before the last one means that the run went back: what came after it is dropped."""
        if step < self._last:
            self._keep(step)
        self._last = max(self._last, step)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(to_line({"step": step, "kind": kind, **fields}))

    def _keep(self, step: int, facts: Mapping[str, Any] | None = None) -> None:
        """Drops the lines behind `step`, and one that was not finished; the `run` line stays, or is replaced."""
        before = self._path.read_bytes() if self._path.exists() else b""
        records = read_log(self._path)
        first = [record for record in records if record.get("kind") == "run"][-1:]
        if facts is not None:
            first = [{"step": 0, "kind": "run", **facts}]
        kept = first + [record for record in records if record.get("kind") != "run" and record["step"] <= step]
        self._last = max((record["step"] for record in kept), default=0)
        after = "".join(map(to_line, kept)).encode()
        if after != before:
            atomic.write_bytes(self._path, after)
