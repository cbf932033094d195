"""Intervals and tests: resampling weights, interval limits, sign flips, multiplicity, mixed models."""
