"""Which GPUs a program may see: CUDA_VISIBLE_DEVICES, by index, by UUID and by MIG instance."""

from collections.abc import Sequence

from wattsmith.terms.errors import BadInput


def visible_gpus(setting: str | None, uuids: Sequence[str], mig_parents: dict[str, int]) -> list[int]:
    """Indices into UUIDS that SETTING names, in its order and each once; all of them when it is None.

    A name may be cut short as long as it fits one GPU alone. MIG_PARENTS gives the GPU of each MIG instance.
    As in CUDA, what follows the first index that does not exist (such as -1) is not visible.
    """
    if setting is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        index = _gpu_named(entry, uuids, mig_parents)
        if index is None:
            break
        if index not in found:
            found.append(index)
    return found


def _gpu_named(entry: str, uuids: Sequence[str], mig_parents: dict[str, int]) -> int | None:
    """The GPU that one ENTRY names; None ends the list."""
    if not entry:
        return None
    if entry.lstrip("+-").isdigit():
        return int(entry) if 0 <= int(entry) < len(uuids) else None
    matches = {i for i, uuid in enumerate(uuids) if uuid.startswith(entry)}
    matches |= {parent for uuid, parent in mig_parents.items() if uuid.startswith(entry)}
    if len(matches) == 1:
        return matches.pop()
    known = ", ".join([*uuids, *mig_parents]) or "none"
    what = "fits several GPUs" if matches else "names no GPU of this machine"
    raise BadInput(f"CUDA_VISIBLE_DEVICES entry {entry!r} {what}; known are: {known}")
