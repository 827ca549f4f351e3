"""Replaced token detection (ELECTRA): a generator and a discriminator."""
