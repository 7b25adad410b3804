"""The dates of PTDaemon and LoadGen: `MM-DD-YYYY hh:mm:ss.mmm`, taken as UTC."""

import re
from datetime import UTC, datetime
from functools import lru_cache

PATTERN = r"\d\d-\d\d-\d{4} \d\d:\d\d:\d\d\.\d{3,6}"
STAMP = re.compile(PATTERN)
_MINUTE = len("MM-DD-YYYY hh:mm:")


def stamp_s(text: str) -> float:
    """Seconds since 1970 of a date. Raises ValueError when it is none."""
    seconds, fraction = text[_MINUTE : _MINUTE + 2], text[_MINUTE + 3 :]
    digits = seconds + fraction
    if not (5 <= len(digits) <= 8 and text[_MINUTE + 2] == "." and digits.isdecimal() and digits.isascii()):
        raise ValueError(f"{text!r} is no date such as 02-19-2024 23:12:54.593")
    if seconds > "59":
        raise ValueError(f"{text!r} has no such second")
    # Whole microseconds, divided once: the same date gives the same number wherever it is read.
    return ((_minute_s(text[:_MINUTE]) + int(seconds)) * 1_000_000 + int(fraction.ljust(6, "0"))) / 1_000_000


@lru_cache(maxsize=4096)
def _minute_s(text: str) -> int:
    try:
        month, day, year, hour, minute = (int(text[a:b]) for a, b in ((0, 2), (3, 5), (6, 10), (11, 13), (14, 16)))
        if re.fullmatch(r"[0-9]{2}-[0-9]{2}-[0-9]{4} [0-9]{2}:[0-9]{2}:", text) is None:
            raise ValueError
        return int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp())
    except ValueError:
        raise ValueError(f"{text!r} begins no date such as 02-19-2024 23:12:54.593") from None


def stamp(time_s: float) -> str:
    """The date of time_s, to the millisecond, as PTDaemon and LoadGen write it."""
    milliseconds = round(time_s * 1_000)
    moment = datetime.fromtimestamp(milliseconds // 1_000, tz=UTC)
    return f"{moment:%m-%d-%Y %H:%M:%S}.{milliseconds % 1_000:03d}"
