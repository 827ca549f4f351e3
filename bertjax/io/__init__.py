"""Files and trees: atomic writes, JSON lines, progress bars, paths of nested dicts."""
