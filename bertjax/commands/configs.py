"""The configs that bertjax ships, with sizes and needs."""

from __future__ import annotations

import dataclasses
import json
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from bertjax.commands.arguments import Flag
from bertjax.commands.signatures import command
from bertjax.config.catalog import ConfigFacts, ConfigFile, config_file, config_files
from bertjax.config.names import split_argument
from bertjax.io.output import align, format_count

_HEADINGS = ("", "parameters", "objective", "tokens", "batch", "steps", "tokenizer", "needs")
_NO_BREAK = "\xa0"


class Configs(list[Mapping[str, Any]]):
    """The facts of configs, one mapping per size; `str` is what the command prints, at the width of the terminal."""

    def __init__(self, files: Sequence[ConfigFile], is_overview: bool) -> None:
        super().__init__(each.as_json(size) for each in files for size in each.sizes)
        self._files, self._is_overview = files, is_overview

    def __str__(self) -> str:
        width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        if self._is_overview:
            advice = textwrap.fill("bertjax configs NAME describes one; --config NAME:SIZE uses it.", width)
            return "\n\n".join(_overview(each, width) for each in self._files) + f"\n\n{advice}"
        facts = [each.facts(size) for each in self._files for size in each.sizes]
        return f"{_reflow(self._files[0].doc, width)}\n\n{_table(facts, width)}"


@command
def configs(name: Annotated[str | None, Flag("name", metavar="NAME", nargs="?")] = None) -> Configs:
    """List the configs that bertjax ships, with sizes and needs; with a name, describe one.

    Args:
        name: a config, such as bert, bert:base or a file PATH.py

    Returns:
        The facts of every config and size.

    Raises:
        UserError: there is no config or size of this name.

    Example:
        bertjax configs bert
    """
    if name is None:
        return Configs(config_files(), is_overview=True)
    stem, size = split_argument(name)
    file = config_file(stem)
    return Configs([file if size is None else dataclasses.replace(file, sizes=(size,))], is_overview=False)


def show(result: Configs, *, as_json: Annotated[bool, Flag("--json")] = False) -> None:
    """Prints the configs.

    Args:
        result: what `configs` returned
        as_json: print a JSON list with one object per config and size
    """
    print(json.dumps(result, indent=2) if as_json else result)


def _overview(file: ConfigFile, width: int) -> str:
    facts = [file.facts(size) for size in file.sizes]
    counts = ["" if each.parameters is None else format_count(each.parameters) for each in facts]
    sizes = [f"{size} {count}".strip() for size, count in zip(file.sizes, counts, strict=True)]
    lines = [file.title]
    if any(file.sizes):
        title = "Sizes and parameters" if facts[0].parameters else "Recipes"
        lines.append(f"{title}: {', '.join(size.replace(' ', _NO_BREAK) for size in sizes)}")
    else:
        lines.append(f"{sizes[0]} parameters")
    recipes = [each for each in facts if "smoke" not in each.name] or facts
    lengths = ", ".join(f"{length:,}" for length in sorted({length for each in recipes for length in each.seq_lens}))
    words = [_distinct(each.objective for each in recipes), f"{lengths} tokens per sequence"]
    lines.append("; ".join(filter(None, [*words, _distinct(each.tokenizer for each in recipes)])))
    needs: dict[str, list[str]] = {}  # the keys by the sizes that need them
    for need in dict.fromkeys(need for each in facts for need in each.needs):
        only = ", ".join(size for size, each in zip(file.sizes, facts, strict=True) if need in each.needs)
        needs.setdefault(only, []).append(need)
    for only, keys in needs.items():
        lines.append(f"Needs {', '.join(keys)}" + (f" ({only})" if only != ", ".join(file.sizes) else ""))
    if file.hardware and not file.hardware.startswith("not measured"):
        lines.append(f"Hardware: {file.hardware}")
    return f"{file.name}\n" + textwrap.indent("\n".join(_fill(line, width - 4) for line in lines), "    ")


def _table(facts: Sequence[ConfigFacts], width: int) -> str:
    """A table where it fits into the terminal, otherwise a paragraph per config."""
    rows = [_cells(each) for each in facts]
    used = [index for index in range(len(_HEADINGS)) if any(row[index] for row in rows)]
    lines = align([[row[index] for index in used] for row in [_HEADINGS, *rows]])
    if max(map(len, lines)) <= width:
        return "\n".join(lines)
    texts = [(row[0], ", ".join(f"{_HEADINGS[i]}{_NO_BREAK}{row[i]}" for i in used[1:] if row[i])) for row in rows]
    return "\n".join(f"{name}\n{textwrap.indent(_fill(text, width - 4), '    ')}" for name, text in texts)


def _cells(each: ConfigFacts) -> tuple[str, ...]:
    steps = f"{each.num_steps:,}" if each.num_steps else f"{each.epochs:g} epochs"
    lengths = ", ".join(f"{length:,}" for length in each.seq_lens)
    tokenizer = f"{each.tokenizer} {each.vocab_size:,}" if each.tokenizer and each.vocab_size else ""
    parameters = f"{each.parameters:,}" if each.parameters else ""
    return (
        each.name,
        parameters,
        each.objective,
        lengths,
        f"{each.batch_size:,}",
        steps,
        tokenizer,
        ", ".join(each.needs),
    )


def _distinct(values: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(value for value in values if value))


def _reflow(text: str, width: int) -> str:
    """Wraps the paragraphs of a docstring; what is indented, such as commands, stays as it is."""
    return "\n\n".join(each if each.startswith(" ") else _fill(each, width) for each in text.split("\n\n"))


def _fill(text: str, width: int) -> str:
    """Wraps text at spaces, not at those that do not break."""
    lines = textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_NO_BREAK, " ")
