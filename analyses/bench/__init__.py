"""How fast and how large: recording against a plain forward pass, estimating against scipy's bootstrap.

``python -m analyses.bench`` measures; docs/bench.md says what and keeps the numbers.
"""
