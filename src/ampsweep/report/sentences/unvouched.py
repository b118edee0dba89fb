"""Operators that a prediction does not vouch for, in words."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ampsweep.record.parts import Doubt, UnvouchedOperator

_MAX_MODULES: Final = 2
_REASONS: Final[dict[Doubt, str]] = {
    "custom": "not torch's own, so that only its author knows what its kernel takes",
    "untested": "its memory was never compared with its kernel's",
    "workspace": "the library behind it chooses a workspace while it runs, which the peak does not have",
    "reserve": "cuDNN chooses while it runs what it keeps for backward; the peak has what backward needs at least",
    "varies": "one of them is predicted: step 2's, or that which a run's peak was seen with",
}


def unvouched(operators: Sequence[UnvouchedOperator]) -> Iterator[str]:
    """Yield a sentence for each reason, with the operators it holds for and the modules that call them."""
    for doubt, reason in _REASONS.items():
        named = [_called(one) for one in operators if one.doubt == doubt]
        if named:
            yield f"Not vouched for: {', '.join(named)}: {reason}."


def not_vouched_for(names: Iterable[str]) -> str:
    """The clause that names the operators after a prediction, with its semicolon; the empty text for none."""
    named = sorted({*names})
    return f"; not vouched for: the memory of {', '.join(named)}" if named else ""


def _called(operator: UnvouchedOperator) -> str:
    modules = operator.modules
    if not modules:
        return operator.name
    others = len(modules) - _MAX_MODULES
    more = f" and {others} more" if others > 0 else ""
    return f"{operator.name} in {', '.join(modules[:_MAX_MODULES])}{more}"
