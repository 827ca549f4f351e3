"""Speed of the training step, and the same step in PyTorch for comparison."""
