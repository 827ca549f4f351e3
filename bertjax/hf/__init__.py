"""Hugging Face folders: loading, saving, keymaps, model cards."""
