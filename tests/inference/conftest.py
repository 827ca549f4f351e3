"""Makes the helpers of tests/tasks importable, whichever tests are collected."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))
