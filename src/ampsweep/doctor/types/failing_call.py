"""The call that stops a training, seen as its code makes it, and the casts with which it would go on."""

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from sys import _getframe
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import SequenceKey, tree_leaves_with_path, tree_map_with_path

from ampsweep.doctor.replay import Replay
from ampsweep.doctor.source_edit import CallSite, Place, Rewrite
from ampsweep.doctor.tensor_origins import TensorOrigins
from ampsweep.doctor.types.findings import MadeTensor, MixedDtypes, NoSuchDtype, NumberTooLarge, Operand, WrongDtypes
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import CallObserver, Phase, observe
from ampsweep.observe.functions import CallIdentity, FunctionMode
from ampsweep.observe.operators import OpOverload, schema_of
from ampsweep.own_code import chain_of

Remedy = dict[Place, torch.dtype | float]
"""New operands by their places: tensors are cast to a dtype, numbers replaced by another."""

_IN_PLACE: Final = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__imatmul__", "__ipow__")


@dataclass(frozen=True)
class FailedCall:
    """A call that raised an error."""

    error: Exception
    identity: CallIdentity
    operands: tuple[Operand, ...]
    numbers: dict[Place, float]
    """Those among the arguments that the dtype of a tensor cannot hold."""
    fault: type[WrongDtypes] | None
    """The kind of its finding; None: other dtypes do not mend it."""
    remedies: tuple[Remedy, ...]
    """All that let the call itself go through, the best first."""
    codes: tuple[str | None, ...]
    """The line of code for each remedy."""
    operator: str
    """As torch writes it: `aten.addmm`; the innermost that failed."""
    phase: Phase
    module: str | None


class CallWatch(FunctionMode):
    """Sees each function of torch's interface that a replay calls: notes one that fails, and applies remedies."""

    def __init__(self, replay: Replay, remedies: Sequence[tuple[CallIdentity, Remedy]] = ()) -> None:
        super().__init__(replay.device.type)
        self._replay, self._remedies = replay, remedies
        self._failures: list[FailedCall] = []
        self._below: tuple[Exception, Any, Sequence[Any], dict[str, Any]] | None = None
        self._is_trying = False
        self.origins = TensorOrigins(replay.model, replay.trainer.optimizers.values(), self)
        self.cast_in: dict[CallIdentity, list[str | None]] = {}
        """Modules in which operands were cast, for each identity."""
        self._observer: CallObserver

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as entered:
            self._observer = entered.enter_context(observe(self._replay.model, self.origins.note, around=self._around))
            entered.enter_context(super().watching())
            yield

    def failure_of(self, error: BaseException) -> FailedCall | None:
        """The failed call that an error comes from."""
        for seen in chain_of(error):
            for one in self._failures:
                if one.error is seen:
                    return one
            call = self._observer.failed
            if self._below is not None and self._below[0] is seen and call is not None:
                where = CallIdentity(call.operator, call.place, None), call.operator, call.phase, call.module
                return self._failed(*self._below[1:], self._below[0], where, None)
        return None

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert self.running is not None
        identity = self.running.identity
        args, kwargs = self._mended(identity, args, kwargs)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if not self._is_trying and not isinstance(error, AttributeError | StopIteration):
                name, below, call = identity.function, self._below, self._observer.failed
                operator = name if getattr(torch.ops.aten, name, None) is None else f"aten.{name}"
                if below is not None and below[0] is error and call is not None:
                    operator = call.operator
                where = identity, operator, self._observer.phase, self._module
                self._failures.append(self._failed(func, args, kwargs, error, where, CallSite.now(_getframe())))
            raise

    def _around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.running is None and self._remedies:  # autograd's own, or the suite's
            forward = self._observer.running
            line = None if forward is None else forward.place
            identity = CallIdentity(str(getattr(func, "overloadpacket", func)), line, None)
            args, kwargs = self._mended(identity, args, kwargs)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if not self._is_trying:
                self._below = error, func, args, kwargs
            raise

    def _mended(
        self, identity: CallIdentity, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        for known, remedy in self._remedies:
            if known == identity:
                args, kwargs = _changed_arguments(args, kwargs, remedy)
                if self._observer.phase != "backward":  # a checkpoint, which runs its forward again
                    self.cast_in.setdefault(known, []).append(self._module)
        return args, kwargs

    @property
    def _module(self) -> str | None:
        """The module that runs; in backward that of the forward call, unless a checkpoint runs its forward again."""
        running, forward = self._observer.module, self._observer.running
        return running if forward is None or running is not None else forward.module

    def _failed(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        error: Exception,
        where: tuple[CallIdentity, str, Phase, str | None],
        site: CallSite | None,
    ) -> FailedCall:
        """Describe a call that has raised an error, `where` by its identity, operator, phase and module."""
        identity, operator, phase, module = where
        arguments = _leaves(args, kwargs)
        values = {at: one for at, one in arguments if isinstance(one, Tensor) and one.is_floating_point()}
        operands = tuple(self._operand(func, identity.function, at, one, site) for at, one in values.items())
        numbers = {
            at: float(one)
            for at, one in arguments
            if type(one) in (float, int) and math.isfinite(one) and abs(one) > _limit(operands)
        }
        self._is_trying = True
        try:
            candidates = self._candidates(identity.function, operands, numbers)
            remedies = tuple(one for one in candidates if _goes(func, args, kwargs, one))
        finally:
            self._is_trying = False
        return FailedCall(
            error=error,
            identity=identity,
            operands=operands,
            numbers=numbers,
            fault=_fault(operands, remedies),
            remedies=remedies,
            codes=tuple(None if site is None else _code(site, one, operands, values) for one in remedies),
            operator=operator,
            phase=phase,
            module=module,
        )

    def _operand(self, func: Any, function: str, place: Place, tensor: Tensor, site: CallSite | None) -> Operand:
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
            source=None if site is None else site.expression(place, tensor),
        )

    def _candidates(self, function: str, operands: Sequence[Operand], numbers: dict[Place, float]) -> list[Remedy]:
        """All changes of operands that may mend a call, the best first: parameters are cast last, few before many."""
        dtypes = [*dict.fromkeys(one.torch_dtype for one in operands)]
        free = [one for one in operands if not _is_written(function, one.place)]
        found: list[Remedy] = [{at: math.copysign(_limit(operands), value)} for at, value in numbers.items()]
        for dtype in dtypes if len(dtypes) > 1 else ():
            others = [one for one in free if one.torch_dtype != dtype]
            found += [{one.place: dtype} for one in others]
            groups = [[one for one in others if one.torch_dtype == other] for other in dtypes]
            found += [{one.place: dtype for one in group} for group in (*groups, others) if len(group) > 1]
        found.append({one.place: torch.float32 for one in free if one.torch_dtype != torch.float32})
        unique = [one for number, one in enumerate(found) if one and one not in found[:number]]
        own = self._replay.built.precision.parameters_dtype
        held = {one.place for one in operands if one.made.by in ("parameter", "optimizer_state")}
        return sorted(
            unique,
            key=lambda one: (
                any(place in held for place in one),
                any(isinstance(value, torch.dtype) and value != own for value in one.values()),
                len(one),
            ),
        )


def _goes(func: Any, args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy) -> bool:
    """Tell whether the call goes through with the remedy; what it writes in place is of a replay that is over."""
    try:
        args, kwargs = _changed_arguments(args, kwargs, remedy)
        func(*args, **kwargs)
    except Exception:  # noqa: BLE001  it may fail for any reason, and is then no remedy
        return False
    return True


def _fault(operands: Sequence[Operand], remedies: Sequence[Remedy]) -> type[WrongDtypes] | None:
    if not remedies:
        return None
    if not all(isinstance(value, torch.dtype) for value in remedies[0].values()):
        return NumberTooLarge
    return MixedDtypes if len({one.torch_dtype for one in operands}) > 1 else NoSuchDtype


def _limit(operands: Sequence[Operand]) -> float:
    """The largest number that all operands can hold."""
    return min((torch.finfo(one.torch_dtype).max for one in operands), default=math.inf)


def _is_written(function: str, place: Place) -> bool:
    """Tell whether a function writes into this argument, which then cannot be cast."""
    in_place = function in _IN_PLACE or (function.endswith("_") and not function.endswith("__"))
    return place[0] == "out" or (in_place and place[0] == 0)


def _code(site: CallSite, remedy: Remedy, operands: Sequence[Operand], values: dict[Place, Tensor]) -> str | None:
    """The line of code with the remedy in it."""

    def like(dtypes: Collection[object]) -> str | None:
        fitting = [one for one in operands if one.torch_dtype in dtypes and one.place not in remedy]
        return next((f"{one.source}.dtype" for one in fitting if one.source), None)

    def rewrite(place: Place) -> Rewrite:
        new = remedy[place]
        if isinstance(new, torch.dtype):
            end = ".float()" if new == torch.float32 else f".to({like({new}) or new})"
            return lambda text: text + end
        dtype = like({one.torch_dtype for one in operands}) or operands[0].torch_dtype
        return lambda _: f"torch.finfo({dtype}).{'max' if new > 0 else 'min'}"

    return site.rewritten([(place, values.get(place), rewrite(place)) for place in remedy])


def _leaves(args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Place, Any]]:
    """All arguments with their places, also those within lists and tuples."""
    found = tree_leaves_with_path({**dict(enumerate(args)), **kwargs})
    return [(_place(path), value) for path, value in found]


def _changed_arguments(
    args: Sequence[Any], kwargs: dict[str, Any], remedy: Remedy
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with a remedy applied."""

    def change(path: Any, value: Any) -> Any:
        new = remedy.get(_place(path))
        if isinstance(new, torch.dtype):
            return value.to(new) if isinstance(value, Tensor) else value
        return value if new is None else new

    changed = tree_map_with_path(change, {**dict(enumerate(args)), **kwargs})
    return [changed[number] for number in range(len(args))], {name: changed[name] for name in kwargs}


def _argument_name(func: Any, function: str, place: Place) -> str:
    """The name of an argument: that of a Python function, else as the schema of torch's operator has it."""
    first, *inner = place
    names = _names(func, function)
    name = first if isinstance(first, str) else names[first] if first < len(names) else f"argument {first + 1}"
    return name + "".join(f"[{one}]" for one in inner)


def _names(func: Any, function: str) -> list[str]:
    """The names of positional arguments."""
    if function == "__setitem__":
        return ["self", "index", "value"]
    if hasattr(inspect.unwrap(func), "__code__"):
        parameters = inspect.signature(func).parameters.values()
        return [one.name for one in parameters if one.kind <= one.POSITIONAL_OR_KEYWORD]
    overloads = [func]
    if not isinstance(func, OpOverload):
        packet = getattr(torch.ops.aten, function, None)
        overloads = [] if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return max(([one.name for one in schema_of(each).arguments] for each in overloads), key=len, default=["self"])


def _place(path: Any) -> Place:
    return tuple(one.idx if isinstance(one, SequenceKey) else one.key for one in path)
