"""The Python API: the commands as functions that take and return Python values."""
