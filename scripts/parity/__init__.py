"""Compares bertjax with `transformers`: random models of every family, in both directions, every output."""
