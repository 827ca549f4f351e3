"""Speed of the training step, alone or compared with PyTorch, and what a text and a time buy with it."""
