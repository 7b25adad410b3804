"""Yes-or-no questions that a model asks about values, answered as ordinary data would: all is valid, nothing special.

Models look whether a mask hides anything, whether a number overflowed, whether all indices are in range. A trace has no
values; but ordinary data has no padding, no infinities and no bad index. So "are all …?" is yes, and "is any …?" is no,
and a note tells every place where that was decided.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from wattsmith.flows.models.problems import calling_place


@cache
def _mode() -> type:
    """The class; made at first use, because it inherits from torch's."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakTensorKeyDictionary

    class OrdinaryAnswers(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.places: dict[str, bool] = {}  # where a question was asked → how it was answered
            self._answers = WeakTensorKeyDictionary()  # tensor → yes or no
            self._counts = WeakTensorKeyDictionary()  # a sum → over how many elements

        def __torch_dispatch__(
            self, operator: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            name = operator._overloadpacket.__name__
            if name in ("is_nonzero", "item", "_local_scalar_dense") and args[0] in self._answers:
                answer = bool(self._answers[args[0]])
                self.places[calling_place() or "an unknown place"] = answer
                return answer
            given = operator(*args, **(kwargs or {}))
            if isinstance(given, torch.Tensor) and given.device.type == "meta" and given.numel() == 1:
                self._note(name, args, given)
            return given

        def _note(self, name: str, args: tuple[Any, ...], given: Any) -> None:
            asked = args[0] if args and isinstance(args[0], torch.Tensor) else None
            if name in ("all", "any"):
                self._answers[given] = name == "all"
            elif name == "sum" and asked is not None and not asked.is_floating_point():
                self._counts[given] = asked.numel()
            elif name in ("eq", "ne") and asked in self._counts and args[1] == self._counts[asked]:
                self._answers[given] = name == "eq"  # as many as there are
            elif name in ("logical_not", "bitwise_not") and asked in self._answers:
                self._answers[given] = not self._answers[asked]

    return OrdinaryAnswers


def ordinary_answers() -> Any:
    """A mode under which questions about values are answered; its `places` tell which were."""
    return _mode()()
