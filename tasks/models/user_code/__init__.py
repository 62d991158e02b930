"""Code of a user's own: found, digested, held against its contract, imported."""
