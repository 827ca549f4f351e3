"""Errors and signals of the API: messages name arguments instead of flags, and Ctrl-C is a KeyboardInterrupt."""

from __future__ import annotations

import re
import sys
from contextlib import ContextDecorator
from types import TracebackType

from bertjax.errors import UserError
from bertjax.training.signals import StoppedBySignal

_FLAG = re.compile(r"(?<![\w-])--(config\.)?([a-z][a-z-]*)")
_ARGUMENTS = {"in": "inputs", "out": "folder"}


def _name_argument(match: re.Match[str]) -> str:
    name = match[2]
    return name if match[1] else _ARGUMENTS.get(name, name.replace("-", "_"))


class python_errors(ContextDecorator):
    """Raises errors of the body as a Python user expects them.

    `UserError` names arguments (`init_from`) instead of flags (`--config.init_from`). After Ctrl-C, when the state is
    saved, KeyboardInterrupt is raised; after SIGTERM, SystemExit with status 143.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, StoppedBySignal):
            message = str(error).replace("the same command", "the same call")
            if error.exit_code == 130:
                raise KeyboardInterrupt(message) from None
            print(message, file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        if isinstance(error, UserError):
            text = _FLAG.sub(_name_argument, str(error))
            if text != str(error):
                raise UserError(text) from None
