"""A process that holds a device and can be killed: `python holding.py STATE SYSFS SECONDS KNOB=VALUE …`.

Prints "held" with its watchdog's pid, sets the knobs, prints "set", and sits still. SECONDS is how long it holds.
"""

import sys
import time
from pathlib import Path

from wattsmith.control.lease import Lease
from wattsmith.terms.control import parse_value


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    state, sysfs, duration_s, *settings = sys.argv[1:]
    pairs = [setting.split("=") for setting in settings]
    devices = sorted({knob.partition("/")[0] for knob, _ in pairs})
    lease = Lease.take(devices, state=Path(state), sysfs=Path(sysfs), duration_s=float(duration_s), wait_s=5.0)
    say(f"held {lease._watchdog.pid}")
    for knob, text in pairs:
        lease.set(knob, parse_value(lease.card(knob), text))
    say("set")
    time.sleep(600)


if __name__ == "__main__":
    main()
