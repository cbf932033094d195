"""``python -m posstats``."""

from posstats.cli.app import main

if __name__ == "__main__":
    main()
