"""``python -m analyses.architectures``."""

from analyses.architectures.study import main

if __name__ == "__main__":
    main()
