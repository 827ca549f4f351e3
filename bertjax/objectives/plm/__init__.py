"""Permuted language modeling (XLNet)."""
