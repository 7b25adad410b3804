"""`python -m wattsmith` and the command `wattsmith`: Ctrl-C ends it quietly, also while it is being loaded."""

import sys


def main() -> None:
    """The command line."""
    try:
        from wattsmith.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
