"""A step as it was traced without running it: what it calls, and which memory it takes and gives back."""

from dataclasses import dataclass

from wattsmith.terms.run import OperatorCall, Structure

WAIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All that is known of a step that has not run."""

    structure: Structure
    calls: tuple[OperatorCall, ...]
    memory: tuple[tuple[int, int], ...]  # in order: number of the tensor, and bytes taken; 0: given back
    last_step_at: int  # where in `memory` the step begins that was counted
    order: tuple[int, ...]  # places in `calls`, one after the other; WAIT: the host waits for the device
    sequential: int = 0  # kernels one after the other inside recurrent layers, which no call shows

    @property
    def assumed(self) -> int:
        """How often the step asked a tensor for a value, which it does not have here; yes, or one, was taken for it."""
        return self.order.count(WAIT)
