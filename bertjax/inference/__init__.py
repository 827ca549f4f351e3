"""Uses of a trained model: predictions, embeddings, mask filling, pseudo-likelihood, pseudo-labels."""
