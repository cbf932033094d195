"""Figures of results: axes in, axes out."""
