"""Autocast's casts as the installed torch's dispatcher makes them, of CUDA on any machine and without running any."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from types import MappingProxyType
from typing import Any, Final, Literal, Self

import torch
from torch import Tensor

from ampsweep.observe.operators import schema_of

aten = torch.ops.aten

Cast = Literal["lower", "float32", "float32_result", "float32_overload", "widest", "refused"]
"""Inputs are cast to autocast's dtype, or to float32; the result is requested in float32, from the operator or from an
overload of it that takes a dtype; inputs are cast to the widest of their dtypes; or the call is refused."""

_KEYS: Final = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_BAN: Final = "unsafe to autocast"
_SAMPLES: Final[dict[str, Any]] = {
    "int": 0,
    "SymInt": 0,
    "float": 0.0,
    "number": 1,
    "bool": False,
    "str": "",
    "List[int]": [0],
    "List[SymInt]": [0],
    "List[float]": [0.0],
    "List[bool]": [False],
}
"""A value for every type of argument that is no tensor and has to be given."""


@dataclass(frozen=True)
class AutocastCall:
    """The call that autocast makes of a call: what reaches the operator once everything is cast."""

    operator: str
    """Its name with the overload, without `aten.`, as `exp` or `norm.ScalarOpt_dtype`."""
    dtypes: tuple[torch.dtype, ...]
    """Those of the tensors it gets, in the order of its arguments."""
    requested: torch.dtype | None = None
    """The dtype requested for the result, where the operator takes one and is given one."""


class RefusedCallError(Exception):
    """Raised where autocast's kernel raises an error instead of calling the operator."""


def operator(name: str) -> Any:
    """The operator of `aten` with this name, given without `aten.`, as `pow.Tensor_Scalar`.

    Raises:
        AttributeError: the installed torch has no such operator.
    """
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def autocast_operators(device_type: str) -> list[str]:
    """Names of the operators of `aten` with a kernel of autocast's for this type of device.

    Overloads that take names of dimensions are left out: fake tensors have none.
    """
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(_KEYS[device_type])
    names = sorted(name.removeprefix("aten::") for name in registered if name.startswith("aten::"))
    return [name for name in names if "name" not in name.partition(".")[2].lower()]


@cache
def dispatched_casts(device_type: str) -> Mapping[str, Cast]:
    """The casts of autocast by operator of `aten`, without `_cudnn_rnn`, which casts in a kernel of its own."""
    kinds = {name: _cast(name, device_type) for name in autocast_operators(device_type)}
    return MappingProxyType({name: kind for name, kind in kinds.items() if kind is not None})


def call_under_autocast(
    name: str,
    device_type: str,
    dtypes: Sequence[torch.dtype],
    dtype: torch.dtype = torch.bfloat16,
    requested: torch.dtype | None = None,
) -> AutocastCall:
    """Call an operator under autocast to `dtype`, with tensors of `dtypes` in turn, and return what reaches it.

    Args:
        requested: dtype requested for the result, where the operator may be given one.

    Raises:
        RefusedCallError: autocast's kernel does not let the call through.
    """
    called = operator(name)
    arguments, keywords = _arguments(called, device_type, dtypes, requested)
    try:
        with _autocast(device_type, dtype), torch.inference_mode():  # without gradients composites come whole
            called(*arguments, **keywords)
    except _ReachedError as reached:
        return reached.call
    except RuntimeError as error:
        raise RefusedCallError(str(error)) from error
    raise AssertionError(f"{name} ended without reaching an operator")


def _cast(name: str, device_type: str) -> Cast | None:
    half = torch.bfloat16
    try:
        low, high = (call_under_autocast(name, device_type, [dtype], half) for dtype in (half, torch.float32))
    except RefusedCallError as refusal:
        return "refused" if _BAN in str(refusal) else None
    if low.operator != name:
        return "float32_overload"
    if low.requested is not None:
        return "float32_result"
    if half not in low.dtypes:
        return "float32"
    return "widest" if torch.float32 in high.dtypes else "lower"


@contextmanager
def _autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """Enable autocast for this type of device, which `torch.autocast` refuses for CUDA where there is none."""
    enabled, before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, enabled)
        torch.set_autocast_dtype(device_type, before)


def _arguments(
    called: Any, device_type: str, dtypes: Sequence[torch.dtype], requested: torch.dtype | None
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of the types that the operator's schema names; of optional ones only tensors and a dtype are given."""
    turns = cycle(dtypes)

    def make_tensor() -> Tensor:
        return _Witness(next(turns), device_type)

    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for argument in schema_of(called).arguments:
        value = requested if argument.name == "dtype" else _sample(str(argument.type), make_tensor, device_type)
        if not argument.kwarg_only:
            positional.append(value)
        elif value is not None:
            keywords[argument.name] = value
    return positional, keywords


def _sample(type_name: str, make_tensor: Callable[[], Tensor], device_type: str) -> Any:
    match type_name:
        case "Tensor" | "Optional[Tensor]":
            return make_tensor()
        case "List[Tensor]":
            return [make_tensor(), make_tensor()]
        case "List[Optional[Tensor]]":  # indices
            return [_Witness(torch.int64, device_type)]
    return None if type_name.startswith("Optional") else _SAMPLES[type_name]


class _ReachedError(Exception):
    def __init__(self, call: AutocastCall) -> None:
        super().__init__(call)
        self.call = call


class _Witness(Tensor):
    """A tensor of nothing but a dtype and a device, which takes casts; every other call ends in `_ReachedError`.

    Every build of torch registers autocast's kernels for all types of devices, so CUDA's answer without CUDA, too.
    """

    def __new__(cls, dtype: torch.dtype, device_type: str) -> Self:
        made: Self = Tensor._make_wrapper_subclass(cls, (2, 2), dtype=dtype, device=torch.device(device_type))
        return made

    def __init__(self, dtype: torch.dtype, device_type: str) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten.to.dtype:
            return cls(args[1], args[0].device.type)
        if func is aten._to_copy.default:
            return cls(kwargs["dtype"], args[0].device.type)
        given = [*args, *kwargs.values()]
        flat = [one for value in given for one in (value if isinstance(value, list | tuple) else [value])]
        dtypes = tuple(one.dtype for one in flat if isinstance(one, Tensor))
        name = str(func).removeprefix("aten.").removesuffix(".default")
        raise _ReachedError(
            AutocastCall(name, dtypes, next((one for one in flat if isinstance(one, torch.dtype)), None))
        )
