"""The Python API: the commands as functions that take and return Python values."""

import warnings

# `datasets` draws no bars here, but its import warns in a notebook without ipywidgets.
warnings.filterwarnings("ignore", message="IProgress not found")
