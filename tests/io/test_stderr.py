"""What libraries print is dropped, unless it was their last word."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os
from bertjax.io.stderr import silence_unless_last

with silence_unless_last():
    os.write(2, b"of no interest\\n")
os.write(2, b"between\\n")
with silence_unless_last():
    os.write(2, b"Unknown flag\\n")
    {end}
"""


@pytest.mark.parametrize(("end", "printed"), [("os._exit(1)", "between\nUnknown flag\n"), ("pass", "between\n")])
def test_the_last_words_of_a_process_are_printed(end: str, printed: str) -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], stderr=subprocess.PIPE, check=False)
    assert process.stderr.decode() == printed
