"""A key-value store with the interface of jax's coordination service, for processes that are threads."""

from __future__ import annotations

import threading
import time


class Store:
    """The state that several `Client`s share."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()
        self.silent = False  # answers no request, like a halted process


class Client:
    """The used part of `DistributedRuntimeClient`; errors have its messages."""

    def __init__(self, store: Store):
        self.store = store

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        self._answer()
        with self.store.changed:
            if key in self.store.values and not allow_overwrite:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self.store.values[key] = value
            self.store.changed.notify_all()

    def key_value_try_get(self, key: str) -> str:
        self._answer()
        if key not in self.store.values:
            raise RuntimeError(f"NOT_FOUND: {key}")
        return self.store.values[key]

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        self._answer()
        with self.store.changed:
            return [(key, value) for key, value in self.store.values.items() if key.startswith(folder)]

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        self._answer()
        with self.store.changed:
            if not self.store.changed.wait_for(lambda: key in self.store.values, timeout_in_ms / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.store.values[key]

    def _answer(self) -> None:
        while self.store.silent:
            time.sleep(0.01)
