"""The program `bertjax`, also as `python -m bertjax`, with large memory pages for training on a CPU.

XLA:CPU frees the buffers of a step after each step and allocates them again, and the kernel then zeroes every page of
4 KiB once more: a third of the processor time at BERT-mini. Pages of 2 MiB remove that cost (docs/performance.md).
glibc asks the kernel for them only if its environment says so when the process starts, so the process replaces itself:
the same program, process number and arguments.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

TRAINING = ("pretrain", "decay", "finetune", "suite", "prune", "lr-find", "plan", "benchmark")
NAME = "glibc.malloc.hugetlb"
MIN_GLIBC = (2, 35)
ACCELERATORS = ("/dev/nvidia0", "/dev/accel0", "/dev/kfd")


def main() -> int:
    """Runs one command; a command that trains restarts the process first, before anything slow is imported."""
    if sys.argv[1:2] and sys.argv[1] in TRAINING:
        use_huge_pages()
    from bertjax import cli

    return cli.main()


def use_huge_pages() -> None:
    """Restarts this process with large pages, where they help and neither the user nor the kernel has decided."""
    kernel = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        offered = kernel.read_text()
    except OSError:  # not Linux, or a container without it
        return
    environment = huge_page_environment(os.environ, offered, platform.libc_ver())
    if environment is not None and not any(map(os.path.exists, ACCELERATORS)):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def huge_page_environment(environment: Mapping[str, str], offered: str, libc: tuple[str, str]) -> dict[str, str] | None:
    """Returns the environment that asks for large pages, None where that is useless or already decided.

    Args:
        environment: Environment of this process.
        offered: Transparent huge pages of the kernel, such as "always [madvise] never": "always" gives them to every
            process, "never" to none.
        libc: Name and version of the C library.
    """
    name, version = libc
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    tunables = environment.get("GLIBC_TUNABLES", "")
    if "[madvise]" not in offered or name != "glibc" or numbers < MIN_GLIBC or NAME in tunables:
        return None
    return {**environment, "GLIBC_TUNABLES": f"{tunables}:{NAME}=1".lstrip(":")}


if __name__ == "__main__":
    sys.exit(main())
