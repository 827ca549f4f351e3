"""The program `bertjax`, also as `python -m bertjax`."""

from __future__ import annotations

import sys

from bertjax.runtime.huge_pages import use_huge_pages

TRAINING = ("pretrain", "decay", "finetune", "benchmark")


def main() -> int:
    """Runs one command; a command that trains restarts the process first, before anything slow is imported."""
    if sys.argv[1:2] and sys.argv[1] in TRAINING:
        use_huge_pages()
    from bertjax import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
