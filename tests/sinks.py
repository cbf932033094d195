"""Attention with sinks of a token, of a position, or none."""

import numpy as np

import posstats as ps

LENGTH, HALF, VOCABULARY = 96, 48, 12


def anchored(kind, n=24, seed=0, heads=2):
    """Uniform attention, of which head 0 of layer 1 gives 0.8 to position 0 or to a key that `kind` names."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, VOCABULARY, size=(n, LENGTH))
    tokens[:, 0] = 0
    weights = np.tril(np.ones((n, 2, heads, LENGTH, LENGTH)))
    for sequence, row in enumerate(tokens):
        where = {"token": np.flatnonzero(row[:HALF] == 7)[:1], "position": [5], "none": []}[kind]
        for key in where:
            weights[sequence, 1, 0, key:, key] = 4.0 * (1 + np.arange(LENGTH - key) + key)
    return ps.from_attention(weights / weights.sum(-1, keepdims=True), tokens=tokens, offsets=(0, 1)), tokens
