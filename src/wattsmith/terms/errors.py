"""The error tree. Children are named for what the caller can do about them.

WattsmithError
├── BadTerm             a value makes no sense; correct it
├── BadInput            a file or command line cannot be understood; correct it
├── MeterUnavailable    there is no such meter here; do what the message says or measure without it
├── MeterLost           a meter that worked is gone for good; what it gave before is kept
├── MeterMissed         one reading failed; the next may work
├── ExtraNeeded         an optional package is missing; install the named extra
├── CommandNotStarted   the command to be measured could not be started
└── NotWritten          a file could not be written; what was measured is kept
"""


class WattsmithError(Exception):
    """Anything that went wrong and that the caller may want to answer."""


class BadTerm(WattsmithError, ValueError):
    """A value makes no sense."""


class BadInput(WattsmithError, ValueError):
    """A file or a command line cannot be understood."""


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
