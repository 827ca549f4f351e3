"""Networks: the encoder, its attention classes, heads and kernels."""
