"""The error tree. Children are named for what the caller can do about them.

WattsmithError
├── BadTerm             a value makes no sense; correct it
├── BadInput            a file or command line cannot be understood; correct it
│   ├── NotRead         what is kept cannot be read just now; try again later
│   └── NoRecord        nobody has measured that device; take a record of it
├── MeterUnavailable    there is no such meter here; do what the message says or measure without it
├── MeterLost           a meter that worked is gone for good; what it gave before is kept
├── MeterMissed         one reading failed; the next may work
├── ExtraNeeded         an optional package is missing; install the named extra
├── CommandNotStarted   the command to be measured could not be started
├── NotWritten          a file could not be written; what was measured is kept
├── NoSuch              there is nothing of that name; look at what there is
├── NotAllowed          you may not do this; ask for a role that may
└── Conflict            it is not in a state for that any more; look at it again
"""

# The field that is wrong ("jobs[2].deadline"; "": the whole), its line (None: it was no file), and the reason.
Problem = tuple[str, int | None, str]


class WattsmithError(Exception):
    """Anything that went wrong and that the caller may want to answer."""


class BadTerm(WattsmithError, ValueError):
    """A value makes no sense."""


class BadInput(WattsmithError, ValueError):
    """A file or a command line cannot be understood. `problems` has what is wrong one by one, where that is known."""

    def __init__(self, message: str, problems: list[Problem] | tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class NotRead(BadInput):
    """A database does not answer. What is in it is safe; nothing is wrong with what was asked."""


class NoRecord(BadInput):
    """Nobody has measured that device, so that nothing can be said of it: take a record first."""


class MeterUnavailable(WattsmithError):
    """There is no such meter on this machine, or it may not be read."""


class MeterLost(WattsmithError):
    """A meter that worked is gone for good."""


class MeterMissed(WattsmithError):
    """One reading failed; the next may work."""


class ExtraNeeded(WattsmithError, ImportError):
    """An optional package is missing."""


class CommandNotStarted(WattsmithError):
    """The command to be measured could not be started. `exit_code` is a shell's: 127 if not found, else 126."""

    def __init__(self, message: str, exit_code: int = 126) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class NotWritten(WattsmithError):
    """A file could not be written."""


class NoSuch(WattsmithError):
    """There is nothing of that name."""


class NotAllowed(WattsmithError):
    """The one who asks may not do this."""


class Conflict(WattsmithError):
    """What was asked for does not go with the state that it is in."""
