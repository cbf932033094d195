"""``python -m analyses.calibration``."""

from analyses.calibration.study import main

if __name__ == "__main__":
    main()
