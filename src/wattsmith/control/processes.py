"""Which processes belong to one that holds a device."""

from pathlib import Path


def family_of(pid: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """PID, all that it started and they started, and those that started it."""
    parents = _parents(proc)
    family = {pid}
    ancestor = parents.get(pid, 0)
    grown = True
    while grown:
        children = {child for child, parent in parents.items() if parent in family} - family
        family |= children
        grown = bool(children)
    while ancestor > 1 and ancestor not in family:
        family.add(ancestor)
        ancestor = parents.get(ancestor, 0)
    return frozenset(family)


def _parents(proc: Path) -> dict[int, int]:
    """The parent of every process that can be seen."""
    found = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue  # it has ended since
            found[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])  # its name may hold spaces and brackets
    return found
