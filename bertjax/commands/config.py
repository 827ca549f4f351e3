"""The keys of a config in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from bertjax.commands.arguments import Config, Flag, Overrides
from bertjax.commands.signatures import command
from bertjax.config.reference import describe_keys
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
