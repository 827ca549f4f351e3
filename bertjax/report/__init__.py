"""HTML reports: one self-contained page per run, and a page that compares runs."""
