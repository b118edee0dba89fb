"""The casts of autocast in the installed torch's dispatcher, for CUDA on any machine; no operator runs."""

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
"""Inputs are cast to autocast's dtype, or to float32; the result is requested in float32, from the operator or from its
overload with a dtype; inputs are cast to the widest of their dtypes; or the call is refused."""

_KEYS: Final = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_BAN: Final = "unsafe to autocast"
_SCALARS: Final[dict[str, Any]] = {"int": 0, "SymInt": 0, "float": 0.0, "number": 1, "bool": False, "str": ""}
_SAMPLES: Final[dict[str, Any]] = _SCALARS | {f"List[{name}]": [value] for name, value in _SCALARS.items()}
"""A value for every type of required argument that is no tensor."""


@dataclass(frozen=True)
class AutocastCall:
    """The call that reaches the operator after autocast's casts."""

    operator: str  # its name with the overload, without `aten.`, as `exp` or `norm.ScalarOpt_dtype`
    dtypes: tuple[torch.dtype, ...]  # of the tensors, in the order of the arguments
    requested: torch.dtype | None = None  # the dtype requested for the result, if any


class RefusedCallError(Exception):
    """Raised if autocast's kernel raises an error instead of calling the operator."""


def operator(name: str) -> Any:
    """The operator of `aten` with this name, as `pow.Tensor_Scalar`; AttributeError if torch has none."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def autocast_operators(device_type: str) -> list[str]:
    """Operators of `aten` with an autocast kernel for this type of device, without those of named tensors."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(_KEYS[device_type])
    names = sorted(name.removeprefix("aten::") for name in registered if name.startswith("aten::"))
    return [name for name in names if "name" not in name.partition(".")[2].lower()]


@cache
def dispatched_casts(device_type: str) -> Mapping[str, Cast]:
    """The casts of autocast by operator of `aten` except `_cudnn_rnn` (its kernel casts by itself)."""
    kinds = {name: _cast(name, device_type) for name in autocast_operators(device_type)}
    return MappingProxyType({name: kind for name, kind in kinds.items() if kind is not None})


def call_under_autocast(
    name: str,
    device_type: str,
    dtypes: Sequence[torch.dtype],
    dtype: torch.dtype = torch.bfloat16,
    requested: torch.dtype | None = None,
) -> AutocastCall:
    """Call an operator under autocast to `dtype`, with tensors of `dtypes` in turn; return the call that reaches it.
    `requested` is the dtype requested for the result. RefusedCallError: autocast's kernel refuses the call."""
    called = operator(name)
    arguments, keywords = _arguments(called, device_type, dtypes, requested)
    try:
        with _autocast(device_type, dtype), torch.inference_mode():  # without gradients composites come whole
            called(*arguments, **keywords)
    except _ReachedError as reached:
        call: AutocastCall = reached.args[0]
        return call
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
    # `torch.autocast` refuses CUDA on a machine without it.
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
    """Arguments for the operator's schema; of the optional arguments, only tensors and a dtype."""
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
    """Has the AutocastCall as its argument."""


class _Witness(Tensor):
    """A tensor with only a dtype and a device; casts work, and every other operator raises `_ReachedError`. Every build
    of torch registers autocast's kernels for all types of devices, CUDA included."""

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
        flat = [item for value in given for item in (value if isinstance(value, list | tuple) else [value])]
        dtypes = tuple(item.dtype for item in flat if isinstance(item, Tensor))
        name = str(func).removeprefix("aten.").removesuffix(".default")
        requested = next((item for item in flat if isinstance(item, torch.dtype)), None)
        raise _ReachedError(AutocastCall(name, dtypes, requested))
