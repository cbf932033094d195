"""From the saved numbers to CSV tables and those of docs/calibration-inference.md."""
