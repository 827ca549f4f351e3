"""The keys of a config in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from ml_collections import ConfigDict

from bertjax.commands.arguments import Config, Flag, Overrides
from bertjax.commands.signatures import command
from bertjax.config.fields import Setting, format_value
from bertjax.config.keys import groups_read_by, objective_facts
from bertjax.config.model import NETWORK_GROUPS
from bertjax.config.objectives import objective_class
from bertjax.config.overrides import declared, flatten, unknown_key
from bertjax.errors import UserError
from bertjax.experiment.config import load_config
from bertjax.io.output import Summary


@command
def config(
    config: Config,
    keys: Annotated[Sequence[str], Flag("keys", metavar="KEY", nargs="*")] = (),
    overrides: Overrides = None,
) -> Summary:
    """Print the keys of a config with value, default, choices and help.

    Args:
        keys: keys or groups, such as train or train.num_steps (default: all)

    Raises:
        UserError: the config is not valid, or a key does not exist.

    Example:
        bertjax config --config bert:base optimizer train.num_steps
    """
    return Summary("\n".join(describe_keys(load_config(config, overrides), list(keys))))


def describe_keys(cfg: ConfigDict, names: list[str]) -> Iterator[str]:
    """Yields the description of keys, each with its value, default, choices and help.

    Args:
        cfg: A config.
        names: Keys or groups; none: all keys but those of other objectives than the chosen one.

    Raises:
        UserError: A name is neither a key nor a group.
    """
    values, known, hidden = flatten(cfg), declared(cfg), () if names else _other_groups(cfg)
    for name in names:
        if not any(key == name or key.startswith(f"{name}.") for key in values):
            raise UserError(unknown_key(name, known))
    for key, value in values.items():
        chosen = any(key == name or key.startswith(f"{name}.") for name in names) if names else True
        if chosen and not key.startswith(hidden):
            each = known[key]
            details = f"{each.help} {_details(each, value)}".strip()
            yield f"{key} = {format_value(value)}\n{textwrap.indent(textwrap.fill(details, 96), '    ')}"


def _details(each: Setting, value: Any) -> str:
    choices = f"Choices: {', '.join(each.choices)}." if each.choices else ""
    default = list(each.default) if isinstance(each.default, tuple) else each.default
    if each.follows:
        shown = f"(Follows {each.follows[0]}.)"
    else:
        shown = "" if value == default else f"(Default: {format_value(default) or 'empty'}.)"
    return " ".join(filter(None, (choices, each.bounds and f"{each.bounds.capitalize()}.", shown)))


def _other_groups(cfg: ConfigDict) -> tuple[str, ...]:
    """Prefixes of the keys that the chosen objective does not read."""
    chosen, facts = cfg.objective.name, objective_facts()
    reads = facts[chosen].reads if chosen in facts else groups_read_by(objective_class(chosen))
    if chosen not in facts or facts[chosen].is_finetuning:  # networks that follow from the kind of task, or unlisted
        reads += tuple(objective_class(chosen).read_encoders(cfg))
    of_objectives = {key.rpartition(".")[0] for key in declared() if key.startswith("objective.")} - {"objective"}
    others = {*of_objectives, *NETWORK_GROUPS, *(each.reads[0] for each in facts.values())} - {*reads}
    return tuple(f"{group}." for group in sorted(others))
