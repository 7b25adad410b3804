"""A process that adds runs: `python -m tests.store.write_runs URL SESSION COUNT one|all`.

One by one, it says each number once that run is safe; all at once, before it hands that run over.
"""

import sys
from collections.abc import Iterator

from tests.store.making import run_of

from wattsmith.store.opening import open_store
from wattsmith.terms.run import Run


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def announced(session: str, count: int) -> Iterator[Run]:
    for number in range(count):
        say(str(number))
        yield run_of(number, session=session)


def main(url: str, session: str, count: str, how: str) -> None:
    with open_store(url) as store:
        say("open")
        if how == "all":
            store.add_all(announced(session, int(count)))
            return
        for number in range(int(count)):
            store.add(run_of(number, session=session))
            say(str(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
