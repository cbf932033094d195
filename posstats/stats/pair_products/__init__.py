"""Sums of pair products: the additive terms, their per-document statistics, their value at any weights."""
