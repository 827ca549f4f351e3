"""`probes.jsonl`: probes of the model during training, one JSON object per line.

Every record has `step` and `kind`; the other fields depend on the kind:

    run            parameters {network: n}, sizes, devices, jax, objective, base_model, sources {train, eval}, tokens,
                   rows, phases [{start, slots, flops}]
    memory         host, peak_host and, if the device reports them, device, peak_device: bytes
    fill_mask      sentence, tokens [[token, probability], ...]
    attention      tokens [t], layers, heads, maps [layers][heads]: base64 of uint8 [t, t], rows = queries
    neighbors      token, near [[token, cosine], ...]
    confusion      labels [k], counts [k][k]: rows gold, columns predicted
    classes        rows [{label, precision, recall, f1, support}]
    reliability    bins [[mean confidence, accuracy, examples]]
    samples        rows [{source, target, output}], signatures {metric: settings of its library}
                   both: optional `set` (data or weights that were scored), `of_step` (step of the weights)
    seeds          rows [{seed, scores {name: value}}]
    pseudo_labels  kept, of, threshold, agreement (None without a gold sample), rows [{label, kept, of, agreement}]
    lr_finder      rates, losses, suggestion
    note           text: why a view is missing
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.io import atomic
from bertjax.io.jsonl import read_log, to_line

FILE = "probes.jsonl"
Record = dict[str, Any]
Probe = tuple[str, dict[str, Any]]
"""Kind and fields of a record."""


class ProbeLog:
    """Writer of `probes.jsonl`; opened at a step, it drops the records of later steps."""

    def __init__(self, workdir: Path, step: int):
        self._path, self._last = workdir / FILE, step
        self._truncate(step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Writes the `run` record, which is first and replaces an earlier one."""
        self._truncate(self._last, facts)

    def forget(self, step: int) -> None:
        """Drops the records of `step` and later, which are about to be written again."""
        if self._last >= step:
            self._truncate(step - 1)

    def write(self, step: int, kind: str, **fields: Any) -> None:
        """Appends a record; an earlier step than the last means a rollback and drops all later records.

        Args:
            step: Step of the probe.
            kind: Kind of record (see the module docstring).
            **fields: JSON values of the record.
        """
        if step < self._last:
            self._truncate(step)
        self._last = max(self._last, step)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(to_line({"step": step, "kind": kind, **fields}))

    def _truncate(self, step: int, facts: Mapping[str, Any] | None = None) -> None:
        """Drops records after `step` and an unfinished line; the `run` record stays or is replaced."""
        before = self._path.read_bytes() if self._path.exists() else b""
        records = read_log(self._path)
        first = [record for record in records if record.get("kind") == "run"][-1:]
        if facts is not None:
            first = [{"step": 0, "kind": "run", **facts}]
        retained = first + [record for record in records if record.get("kind") != "run" and record["step"] <= step]
        self._last = max((record["step"] for record in retained), default=0)
        after = "".join(map(to_line, retained)).encode()
        if after != before:
            atomic.write_bytes(self._path, after)
