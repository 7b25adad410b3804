"""Layer information of a program that runs: a hook on PyTorch's modules that watches one step of it.

A step is taken to last from one forward pass of the program's network, the first module that it calls, to the next. The
recorder that counts on "meta" tensors watches that one step, which is slower for it; then the hook is gone.
"""

import atexit
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from wattsmith.record.counting import tensors_in
from wattsmith.record.meta import fused_kernels
from wattsmith.record.structure import Ledger, recorder_class, summed_up
from wattsmith.terms.run import Structure

WATCHED_STEP = 3  # those before make what stays, such as optimizer state, and choose kernels
LAST_TRY = 20


class LayerHook:
    """Watches one step of this process's network, and TELLs what it does. Made where PyTorch is imported."""

    def __init__(self, tell: Callable[[Structure], None]) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._tell = tell
        self._network: weakref.ref[Any] | None = None
        self._steps = 0
        self._modes = ExitStack()
        self._ledger: Ledger | None = None
        self._about: tuple[list[Any], list[Any]] = ([], [])
        self._handle = register_module_forward_pre_hook(self._before_forward)
        atexit.register(self.close)

    def close(self) -> None:
        """Tell what was seen, if a step was being watched, and leave the program alone from now on."""
        self._handle.remove()
        atexit.unregister(self.close)
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            self._modes.close()
            self._tell(summed_up(ledger, *self._about))

    def _before_forward(self, module: Any, inputs: tuple[Any, ...]) -> None:
        if self._network is None:
            self._network = weakref.ref(module)
        if self._network() is not module:
            return
        self._steps += 1
        if self._ledger is not None:
            self.close()
        elif self._steps >= WATCHED_STEP and _may_watch(module):
            self._begin(module, inputs)
        elif self._steps >= LAST_TRY:
            self.close()

    def _begin(self, module: Any, inputs: tuple[Any, ...]) -> None:
        parameters = list(module.parameters())
        device = parameters[0].device.type if parameters else "cpu"
        batch = [one for one in tensors_in(inputs) if one.device.type == device]
        self._about = parameters, batch
        ledger = Ledger(device=device)
        for tensor in (*batch, *parameters):
            ledger.hold(tensor)
        self._modes.enter_context(recorder_class()(ledger))
        self._modes.enter_context(fused_kernels(ledger.add_recurrent))
        self._ledger = ledger


def _may_watch(module: Any) -> bool:
    """Not a compiled network, which a recorder would undo; nor inside another mode, which would end before ours."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    compiled = hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    return not (compiled or _get_current_function_mode_stack() or _get_current_dispatch_mode_stack())
