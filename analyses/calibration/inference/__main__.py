"""``python -m analyses.calibration.inference``."""

from analyses.calibration.inference.study import main

if __name__ == "__main__":
    main()
