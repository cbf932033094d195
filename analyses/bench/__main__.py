"""``python -m analyses.bench``."""

from analyses.bench.study import main

if __name__ == "__main__":
    main()
