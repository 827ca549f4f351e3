"""The commands of `bertjax`, from their argument parsers."""

from __future__ import annotations

import argparse
import re

from bertjax.cli import command_parsers


def all_commands() -> str:
    """Returns usage and flags of every command, in the order of `bertjax --help`."""
    return "\n\n".join(_section(name, parser) for name, parser in command_parsers().items())


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).replace(" [-h]", "").strip()
    rows = [_row(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    table = "| argument | meaning |\n| --- | --- |\n" + "\n".join(rows) if rows else ""
    return f"## bertjax {name}\n\n{parser.description}\n\n```text\n{usage}\n\n{parser.epilog or ''}\n```\n\n{table}"


def _row(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or action.metavar or action.dest
    value = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
    details = [re.sub(r"\s+", " ", action.help or "").strip()]
    if action.choices:
        details.append(f"Choices: {', '.join(map(str, action.choices))}.")
    if action.required and action.option_strings:
        details.append("Required.")
    if action.default not in (None, False, argparse.SUPPRESS, [], ()) and "default" not in details[0]:
        details.append(f"Default: `{action.default}`.")
    cells = " ".join(each if each.endswith(".") else f"{each}." for each in details if each)
    return f"| `{name}{value}` | {cells[:1].upper()}{cells[1:]} |"
