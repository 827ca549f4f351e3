"""PyTorch code that is copied into exports of models that no class of `transformers` can hold.

The files import torch and transformers, and nothing of bertjax; bertjax itself only copies them.
"""
