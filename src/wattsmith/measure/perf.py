"""Instructions and cycles of a process and those it starts, counted by the CPU through Linux perf events.

The kernel lets a user count his own processes in user space when kernel.perf_event_paranoid is 2 or less; containers
often forbid it altogether. Threads that were there before the counting began are counted one by one; what they start
is counted with them.
"""

import ctypes
import errno
import fcntl
import os
import platform
import struct
from pathlib import Path

from wattsmith.terms.errors import MeterLost, MeterUnavailable

HARDWARE = 0
EVENTS = {"cycles": 0, "instructions": 1}
SYSCALL = {"x86_64": 298, "aarch64": 241}
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
ATTRIBUTE_BYTES = 112
INHERIT, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
TOTAL_TIMES = 3  # value, time enabled, time running
CLOSE_ON_EXEC = 8


class PerfCounters:
    """Counts what a process and its children execute in user space, from now on."""

    def __init__(self, pid: int) -> None:
        """Raises MeterUnavailable where the kernel or the machine does not let us count."""
        self._files: dict[str, list[int]] = {name: [] for name in EVENTS}
        try:
            for thread in _threads(pid):
                for name, event in EVENTS.items():
                    self._files[name].append(_open(event, thread))
        except OSError as refused:
            self.close()
            raise MeterUnavailable(_why(refused)) from refused

    def read(self) -> dict[str, float]:
        """How many so far, by name. Scaled up where the CPU had to share its counters among several readers."""
        if not any(self._files.values()):
            raise MeterLost("these counters were closed")
        counts = {}
        for name, files in self._files.items():
            total = 0.0
            for file in files:
                value, enabled, running = struct.unpack("QQQ", os.read(file, 24))
                total += value * enabled / running if running else 0.0
            counts[name] = total
        return counts

    def close(self) -> None:
        for files in self._files.values():
            while files:
                os.close(files.pop())


def _threads(pid: int) -> list[int]:
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError as gone:
        raise MeterUnavailable(f"there is no process {pid} to count the instructions of") from gone


def _open(event: int, thread: int) -> int:
    number = SYSCALL.get(platform.machine())
    if number is None:
        raise MeterUnavailable(f"instructions are not counted on {platform.machine()}")
    attribute = bytearray(ATTRIBUTE_BYTES)
    struct.pack_into("IIQQQQQ", attribute, 0, HARDWARE, ATTRIBUTE_BYTES, event, 0, 0, TOTAL_TIMES,
                     INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR)  # fmt: skip
    libc = ctypes.CDLL(None, use_errno=True)
    held = ctypes.create_string_buffer(bytes(attribute), ATTRIBUTE_BYTES)
    file = int(libc.syscall(number, held, thread, -1, -1, CLOSE_ON_EXEC))
    if file < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    fcntl.fcntl(file, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return file


def _why(refused: OSError) -> str:
    if refused.errno in (errno.EACCES, errno.EPERM):
        level = PARANOID.read_text().strip() if PARANOID.exists() else "unknown"
        return (
            f"the kernel does not let this user count instructions (perf_event_paranoid is {level}). "
            "Set it to 2 or less, or give CAP_PERFMON; in a container, allow perf_event_open."
        )
    if refused.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "this CPU shows no counters of instructions, as virtual machines often do not"
    return f"instructions cannot be counted here: {refused.strerror}"
