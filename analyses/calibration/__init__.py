"""Do the intervals cover the truth, and do the tests keep their level? Simulation with known truth.

``python -m analyses.calibration --help`` says how to run it; docs/calibration.md holds what it found.
"""
