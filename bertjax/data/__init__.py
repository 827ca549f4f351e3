"""Corpora: sources, tokenizers, prepared corpora, example formats, packing, batches by cursor."""
