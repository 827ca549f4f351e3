"""Pages that show what a run has learned: one self-contained file in every work folder, and runs side by side."""
