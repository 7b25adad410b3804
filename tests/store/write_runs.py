"""A process that adds runs: `python write_runs.py URL SESSION COUNT`. Says each number once that run is safe."""

import sys

from tests.store.making import run_of

from wattsmith.store.opening import open_store


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(url: str, session: str, count: str) -> None:
    with open_store(url) as store:
        say("open")
        for number in range(int(count)):
            store.add(run_of(number, session=session))
            say(str(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
