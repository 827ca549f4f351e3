"""Attention in blocks that never holds the scores: Pallas kernels for GPUs (Triton) and TPUs (Mosaic)."""
