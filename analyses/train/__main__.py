"""``python -m analyses.train``."""

from analyses.train.study import main

if __name__ == "__main__":
    main()
