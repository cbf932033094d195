"""Calibration of the intervals on document vectors drawn directly: many data sets per cell, one process.

``python -m analyses.calibration.inference --help`` says how to run it; docs/calibration-inference.md holds the result.
"""
