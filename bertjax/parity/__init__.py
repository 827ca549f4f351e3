"""The proof that a family computes what `transformers` computes: random models, both directions, every number."""
