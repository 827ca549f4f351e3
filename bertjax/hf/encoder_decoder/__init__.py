"""Encoder-decoders in Hugging Face folders: families, loading, saving, the forward pass."""
