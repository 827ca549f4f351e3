"""Large memory pages for training on a CPU.

XLA:CPU gives the buffers of a step back after each step and asks for them again, and every page of 4 KiB is then
zeroed by the kernel once more: a third of the processors' time at BERT-mini. With pages of 2 MiB that cost is gone
(docs/performance.md). glibc asks the kernel for them if its environment says so when the process begins, and only
then, so a process that wants them begins anew: the same program, process number and arguments.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

NAME = "glibc.malloc.hugetlb"
FIRST_GLIBC = (2, 35)
ACCELERATORS = ("/dev/nvidia0", "/dev/accel0", "/dev/kfd")


def use_huge_pages() -> None:
    """Begins this process anew with large pages, where they help and nobody has decided about them."""
    kernel = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        offered = kernel.read_text()
    except OSError:  # not Linux, or a container that hides it
        return
    environment = huge_page_environment(os.environ, offered, platform.libc_ver())
    if environment is not None and not any(map(os.path.exists, ACCELERATORS)):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def huge_page_environment(environment: Mapping[str, str], offered: str, libc: tuple[str, str]) -> dict[str, str] | None:
    """The environment that asks for large pages, None where that is of no use or was decided already.

    `offered` is what the kernel says of transparent huge pages, such as "always [madvise] never": with "always" they
    are there anyway, with "never" for nobody.
    """
    name, version = libc
    known = tuple(int(part) for part in version.split(".") if part.isdecimal())
    given = environment.get("GLIBC_TUNABLES", "")
    if "[madvise]" not in offered or name != "glibc" or known < FIRST_GLIBC or NAME in given:
        return None
    return {**environment, "GLIBC_TUNABLES": f"{given}:{NAME}=1".lstrip(":")}
