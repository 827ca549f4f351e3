"""Print the keys of a config with value, default, choices and help."""

from __future__ import annotations

import argparse

REQUIRES_CONFIG = True
SUPPORTS_DRY_RUN = True
EXAMPLE = "bertjax config --config bert:base optimizer train.num_steps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the keys to print."""
    parser.add_argument("keys", nargs="*", metavar="KEY", help="keys or groups, such as train or train.num_steps")


def run(options: argparse.Namespace) -> None:
    """Prints the keys."""
    from bertjax.config.reference import describe_keys

    for text in describe_keys(options.config, options.keys):
        print(text)
