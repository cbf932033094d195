"""``python -m posstats``."""

from posstats.cli import main

if __name__ == "__main__":
    main()
