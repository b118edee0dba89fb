"""The call that stops a training, observed in its code, and the casts with which it would run."""

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_with_path

from ampsweep.doctor.code_edits import CodeEdit
from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.running_code import Names, Place, Remedy, RunningCode, arguments_of, place_of
from ampsweep.doctor.tensor_origins import TensorOrigins
from ampsweep.doctor.types import findings as kinds
from ampsweep.doctor.types.findings import MadeTensor, Operand, WrongDtypes
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Call, CallObserver, Phase, observe
from ampsweep.observe.functions import CallIdentity, FunctionMode
from ampsweep.observe.operators import OpOverload, schema_of
from ampsweep.text import one_line
from ampsweep.user_code import chain_of

_Arguments = tuple[Sequence[Any], dict[str, Any]]
_Raised = tuple[Exception, Any, Sequence[Any], dict[str, Any]]  # the error, and the call that raised it
_IN_PLACE: Final = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__imatmul__", "__ipow__")
_MOST_FAILURES: Final = 8  # the last errors, of which a training may have caught all but one


@dataclass(frozen=True)
class FailedCall:
    error: Exception
    identity: CallIdentity
    operands: tuple[Operand, ...]
    numbers: dict[Place, float]  # number arguments that the dtype of a tensor cannot hold
    fault: type[WrongDtypes] | None  # the kind of its finding; None: other dtypes do not help
    remedies: tuple[Remedy, ...]  # all remedies with which the call itself succeeds, the best first
    edits: tuple[CodeEdit | None, ...]  # of the line, for each remedy; None where the code has no expression for it
    names: Names | None  # in the code of the call
    operator: str  # the innermost that failed, as torch writes it: `aten.addmm`
    phase: Phase
    module: str | None

    def finding(self, number: int, **facts: Any) -> WrongDtypes:
        """The finding for one of the remedies; `facts`: the step, and those that a replay knows better."""
        assert self.fault is not None
        remedy = self.remedies[number]
        changed = [operand for operand in self.operands if operand.place in remedy]
        unchanged = [operand for operand in self.operands if operand.place not in remedy]
        partners = [operand for operand in unchanged if operand.torch_dtype in remedy.values()]
        known: dict[str, Any] = {"stage": "training", "error": one_line(self.error), "runs_with": []}
        edit = self.edits[number]
        known |= {"modules": [self.module] if self.module is not None else []}
        known |= {"change": Change(code=None if edit is None else edit.patch)}
        return self.fault(
            operator=self.operator,
            place=self.identity.line,
            function=self.identity.function,
            phase=self.phase,
            operands=[*changed[:1], *(partners or unchanged)[:1]],
            number=next(iter(self.numbers.values())) if self.fault is kinds.NumberTooLarge else None,
            cast=" and ".join(operand.argument for operand in changed),
            cast_to=", ".join(dict.fromkeys(dtype_name(value) for value in remedy.values())),
            **(known | facts),
        )


@dataclass(frozen=True)
class _Seen:
    """A call that raised an error, to be described once the training has ended with it."""

    raised: _Raised
    where: tuple[CallIdentity, str, Phase, str | None]  # its identity, operator, phase and module
    code: RunningCode | None
    autocast: torch.dtype | None  # None: it was off


class CallWatch(FunctionMode):
    def __init__(
        self,
        device_type: str,
        model: nn.Module,
        optimizers: Iterable[Optimizer] = (),
        parameters_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(device_type)
        self._model, self._parameters_dtype = model, parameters_dtype
        self._failures: deque[_Seen] = deque(maxlen=_MOST_FAILURES)
        self._below: _Raised | None = None
        self.origins = TensorOrigins(model, optimizers, self)
        self._observer: CallObserver

    @contextmanager
    def watching(self) -> Iterator[None]:
        with observe(self._model, self.note_call, around=self.around) as self._observer, super().watching():
            yield

    def note_call(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        self.origins.note(call, args, kwargs, result)

    def failure_of(self, error: BaseException) -> FailedCall | None:
        for seen in chain_of(error):
            for failure in self._failures:
                if failure.raised[0] is seen:
                    return self._failed(failure)
            call = self._observer.failed
            if self._below is not None and self._below[0] is seen and call is not None:
                where = CallIdentity(call.operator, call.place, None), call.operator, call.phase, call.module
                return self._failed(_Seen(self._below, where, None, None))
        return None

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, AttributeError | StopIteration):
                self.note_error(error, func, args, kwargs)
            raise

    def note_error(self, error: Exception, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Keep what is needed to describe a call that has raised an error."""
        assert self.running is not None
        identity, below, call = self.running.identity, self._below, self._observer.failed
        operator = identity.function
        if getattr(torch.ops.aten, operator, None) is not None:
            operator = f"aten.{operator}"
        if below is not None and below[0] is error and call is not None:
            operator = call.operator
        where = identity, operator, self._observer.phase, self._module
        autocast = torch.get_autocast_dtype(self._device_type) if self.running.is_autocast else None
        self._failures.append(_Seen((error, func, args, kwargs), where, RunningCode.here(), autocast))

    def around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            self._below = error, func, args, kwargs
            raise

    @property
    def _module(self) -> str | None:
        """The running module; in backward that of the forward call, unless a checkpoint runs its forward again."""
        running, forward = self._observer.module, self._observer.running
        return running if forward is None or running is not None else forward.module

    def _failed(self, seen: _Seen) -> FailedCall:
        """Describe a call that raised an error."""
        (error, func, args, kwargs), (identity, operator, phase, module) = seen.raised, seen.where
        arguments = [*arguments_of(args, kwargs).items()]
        values = [(at, arg) for at, arg in arguments if isinstance(arg, Tensor) and arg.is_floating_point()]
        operands = tuple(self._operand(func, identity.function, at, value) for at, value in values)
        finite = [(at, float(arg)) for at, arg in arguments if type(arg) in (float, int) and math.isfinite(arg)]
        numbers = {at: value for at, value in finite if abs(value) > _limit(operands)}
        candidates = self._candidates(identity.function, operands, numbers)
        with torch.autocast(self._device_type, seen.autocast, enabled=seen.autocast is not None):
            remedies = tuple(remedy for remedy in candidates if _succeeds(func, args, kwargs, remedy))
        code, fault = seen.code, _fault(operands, remedies)
        names = None if code is None else code.names
        edits = tuple(None if code is None else code.edit(remedy, dict(values)) for remedy in remedies)
        return FailedCall(error, identity, operands, numbers, fault, remedies, edits, names, operator, phase, module)

    def _operand(self, func: Any, function: str, place: Place, tensor: Tensor) -> Operand:
        origin = self.origins.of(tensor)
        made, source = origin.made, origin.dtype_from
        is_another = source is not made and source is not origin
        return Operand(
            argument=_argument_name(func, function, place),
            dtype=dtype_name(tensor.dtype),
            made=MadeTensor.of(made),
            dtype_from=MadeTensor.of(source) if is_another else None,
            place=place,
            torch_dtype=tensor.dtype,
        )

    def _candidates(self, function: str, operands: Sequence[Operand], numbers: dict[Place, float]) -> list[Remedy]:
        """All changes of operands that may help, the best first: few casts before many, casts of parameters last."""
        dtypes = [*dict.fromkeys(operand.torch_dtype for operand in operands)]
        free = [operand for operand in operands if not _is_written(function, operand.place)]
        found: list[Remedy] = [{at: math.copysign(_limit(operands), value)} for at, value in numbers.items()]
        for dtype in dtypes if len(dtypes) > 1 else ():
            others = [operand for operand in free if operand.torch_dtype != dtype]
            found += [{operand.place: dtype} for operand in others]
            groups = [[operand for operand in others if operand.torch_dtype == other] for other in dtypes]
            found += [{operand.place: dtype for operand in group} for group in (*groups, others) if len(group) > 1]
        found.append({operand.place: torch.float32 for operand in free if operand.torch_dtype != torch.float32})
        unique = [remedy for number, remedy in enumerate(found) if remedy and remedy not in found[:number]]
        own = self._parameters_dtype
        held = {operand.place for operand in operands if operand.made.by in ("parameter", "optimizer_state")}

        def order(remedy: Remedy) -> tuple[bool, bool, int]:
            is_foreign = any(isinstance(value, torch.dtype) and value != own for value in remedy.values())
            return any(place in held for place in remedy), is_foreign, len(remedy)

        return sorted(unique, key=order)


def _succeeds(func: Any, args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy) -> bool:
    try:
        args, kwargs = _changed_arguments(args, kwargs, remedy)
        func(*args, **kwargs)  # the training is over, and what is written in place does not matter
    except Exception:  # noqa: BLE001  it may fail for any reason, and is then no remedy
        return False
    return True


def _fault(operands: Sequence[Operand], remedies: Sequence[Remedy]) -> type[WrongDtypes] | None:
    if not remedies:
        return None
    if not all(isinstance(value, torch.dtype) for value in remedies[0].values()):
        return kinds.NumberTooLarge
    return kinds.MixedDtypes if len({operand.torch_dtype for operand in operands}) > 1 else kinds.NoSuchDtype


def _limit(operands: Sequence[Operand]) -> float:
    return min((torch.finfo(operand.torch_dtype).max for operand in operands), default=math.inf)


def writes_in_place(function: str) -> bool:
    return function in _IN_PLACE or (function.endswith("_") and not function.endswith("__"))


def _is_written(function: str, place: Place) -> bool:
    return place[0] == "out" or (place[0] == 0 and writes_in_place(function))


def _changed_arguments(args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy) -> _Arguments:
    def change(path: Any, value: Any) -> Any:
        new = remedy.get(place_of(path))
        if isinstance(new, torch.dtype):
            return value.to(new) if isinstance(value, Tensor) else value
        return value if new is None else new

    changed = tree_map_with_path(change, {**dict(enumerate(args)), **kwargs})
    return [changed[number] for number in range(len(args))], {name: changed[name] for name in kwargs}


def _argument_name(func: Any, function: str, place: Place) -> str:
    first, *inner = place
    names = _names(func, function)
    name = first if isinstance(first, str) else names[first] if first < len(names) else f"argument {first + 1}"
    return name + "".join(f"[{index}]" for index in inner)


def _names(func: Any, function: str) -> list[str]:
    if function == "__setitem__":
        return ["self", "index", "value"]
    if hasattr(inspect.unwrap(func), "__code__"):
        parameters = inspect.signature(func).parameters.values()
        return [parameter.name for parameter in parameters if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD]
    overloads = [func]
    if not isinstance(func, OpOverload):
        packet = getattr(torch.ops.aten, function, None)
        overloads = [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    names = ([argument.name for argument in schema_of(overload).arguments] for overload in overloads)
    return max(names, key=len, default=["self"])
