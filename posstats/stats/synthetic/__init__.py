"""Synthetic recordings with known truth."""
