"""The call that stops a training, seen as its code makes it, and the casts with which it would go on."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from sys import _getframe
from typing import Any, Final, Literal

import torch
from torch import Tensor

from ampsweep.doctor.replay import Replay
from ampsweep.doctor.source_edit import CallSite, Place, Rewrite
from ampsweep.doctor.tensor_origins import TensorOrigin, TensorOrigins
from ampsweep.doctor.types.call_arguments import Remedy, argument_name, can_change, changed_arguments, leaves
from ampsweep.own_code import chain_of
from ampsweep.tracing.calls import CallObserver, Phase, observe
from ampsweep.tracing.functions import CallIdentity, FunctionMode

Fault = Literal["mixed_dtypes", "not_implemented", "number_too_large"]
"""`mixed_dtypes`: the tensors do not fit each other; `not_implemented`: the device has no kernel for the dtype that
they all have; `number_too_large`: the dtype cannot hold a number among the arguments."""

_IN_PLACE: Final = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__imatmul__", "__ipow__")


@dataclass(frozen=True)
class Operand:
    """A floating-point tensor among the arguments of a call that failed."""

    place: Place
    name: str
    """As the operator's schema has it, or the place."""
    dtype: torch.dtype
    origin: TensorOrigin
    source: str | None
    """Its expression in the code, where that is a name."""


@dataclass(frozen=True)
class FailedCall:
    """A call that raised an error."""

    error: Exception
    identity: CallIdentity
    operands: tuple[Operand, ...]
    numbers: tuple[tuple[Place, float], ...]
    """Those among the arguments that the dtype of a tensor cannot hold."""
    fault: Fault | None
    """None: other dtypes do not mend it."""
    remedies: tuple[Remedy, ...]
    """All that let the call itself go through, the best first."""
    codes: tuple[str | None, ...]
    """The line of code for each remedy."""
    operator: str = ""
    """As torch writes it: `aten.addmm`; the innermost that failed."""
    phase: Phase = "forward"
    module: str | None = None
    place: str | None = None


class CallWatch(FunctionMode):
    """Sees each function of torch's interface that a replay calls: notes one that fails, and casts operands.

    Args:
        replay: the training that is watched.
        remedies: what becomes of the operands of some calls.
    """

    def __init__(self, replay: Replay, remedies: Sequence[tuple[CallIdentity, Remedy]] = ()) -> None:
        super().__init__(replay.device.type)
        self._replay, self._remedies = replay, remedies
        self._functions = {identity.function for identity, _ in remedies}
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
            if self._below is not None and self._below[0] is seen:
                return self._failed_below()
        return None

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert self.running is not None
        identity = self.running.identity
        if identity.function in self._functions:
            args, kwargs = self._mended(identity, args, kwargs)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if not self._is_trying and not isinstance(error, AttributeError | StopIteration):
                self._failures.append(self._failed(func, identity, args, kwargs, error))
            raise

    def _around(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.running is None and self._functions:  # autograd's own, or the suite's
            identity = self._identity_below(func)
            if identity.function in self._functions:
                args, kwargs = self._mended(identity, args, kwargs)
        try:
            return func(*args, **kwargs)
        except Exception as error:
            if not self._is_trying:
                self._below = error, func, args, kwargs
            raise

    def _identity_below(self, func: Any) -> CallIdentity:
        forward = self._observer.running
        line = None if forward is None else forward.place
        return CallIdentity(str(getattr(func, "overloadpacket", func)), line, None)

    def _mended(
        self, identity: CallIdentity, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        for known, remedy in self._remedies:
            if known == identity and can_change(args, kwargs, remedy):
                args, kwargs = changed_arguments(args, kwargs, remedy)
                if self._observer.phase != "backward":  # a checkpoint, which runs its forward again
                    self.cast_in.setdefault(known, []).append(self._module)
        return args, kwargs

    @property
    def _module(self) -> str | None:
        """The module that runs; in backward that of the forward call, unless a checkpoint runs its forward again."""
        running, forward = self._observer.module, self._observer.running
        return running if forward is None or running is not None else forward.module

    def _failed(
        self, func: Any, identity: CallIdentity, args: Sequence[Any], kwargs: dict[str, Any], error: Exception
    ) -> FailedCall:
        """Describe a function that has raised an error."""
        below, call, name = self._below, self._observer.failed, identity.function
        operator = name if getattr(torch.ops.aten, name, None) is None else f"aten.{name}"
        if below is not None and below[0] is error and call is not None:
            operator = call.operator
        found = self._described(func, args, kwargs, error, identity, CallSite.now(_getframe(1)))
        phase, module = self._observer.phase, self._module
        return replace(found, operator=operator, phase=phase, module=module, place=identity.line)

    def _failed_below(self) -> FailedCall:
        """Describe an operator that has raised an error although no function of torch's interface has called it."""
        assert self._below is not None
        assert self._observer.failed is not None
        (error, func, args, kwargs), call = self._below, self._observer.failed
        found = self._described(func, args, kwargs, error, CallIdentity(call.operator, call.place, None), None)
        return replace(found, operator=call.operator, phase=call.phase, module=call.module, place=call.place)

    def _described(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        error: Exception,
        identity: CallIdentity,
        site: CallSite | None,
    ) -> FailedCall:
        """Describe a call but for where it is in the training."""
        tensors = [(at, one) for at, one in leaves(args, kwargs) if isinstance(one, Tensor) and one.is_floating_point()]
        operands = tuple(
            Operand(
                at,
                argument_name(func, identity.function, at),
                tensor.dtype,
                self.origins.of(tensor),
                None if site is None else site.expression(at, tensor),
            )
            for at, tensor in tensors
        )
        self._is_trying = True
        try:
            remedies = tuple(
                one for one in self._candidates(identity, operands, args, kwargs) if _goes(func, args, kwargs, one)
            )
        finally:
            self._is_trying = False
        values = dict(tensors)
        return FailedCall(
            error=error,
            identity=identity,
            operands=operands,
            numbers=tuple(_too_large(operands, args, kwargs)),
            fault=_fault(operands, remedies),
            remedies=remedies,
            codes=tuple(None if site is None else _code(site, one, operands, values) for one in remedies),
        )

    def _candidates(
        self, identity: CallIdentity, operands: Sequence[Operand], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[Remedy]:
        """All changes of operands that may mend a call, the best first: parameters are cast last, few before many."""
        dtypes = [*dict.fromkeys(one.dtype for one in operands)]
        free = [one for one in operands if not _is_written(identity.function, one.place)]
        found: list[Remedy] = [{at: limit} for at, limit in _limits(operands, args, kwargs)]
        for dtype in dtypes if len(dtypes) > 1 else ():
            others = [one for one in free if one.dtype != dtype]
            found += [{one.place: dtype} for one in others]
            groups = [[one for one in others if one.dtype == other] for other in dtypes]
            found += [{one.place: dtype for one in group} for group in (*groups, others) if len(group) > 1]
        found.append({one.place: torch.float32 for one in free if one.dtype != torch.float32})
        unique = [one for number, one in enumerate(found) if one and one not in found[:number]]
        own = self._replay.built.precision.parameters_dtype
        held = {one.place for one in operands if one.origin.made.kind in ("parameter", "optimizer_state")}
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
        changed = changed_arguments(args, kwargs, remedy)
        func(*changed[0], **changed[1])
    except Exception:  # noqa: BLE001  it may fail for any reason, and is then no remedy
        return False
    return True


def _fault(operands: Sequence[Operand], remedies: Sequence[Remedy]) -> Fault | None:
    if not remedies:
        return None
    if not all(isinstance(value, torch.dtype) for value in remedies[0].values()):
        return "number_too_large"
    return "mixed_dtypes" if len({one.dtype for one in operands}) > 1 else "not_implemented"


def _too_large(
    operands: Sequence[Operand], args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[Place, float]]:
    if operands:
        limit = min(torch.finfo(one.dtype).max for one in operands)
        for place, value in leaves(args, kwargs):
            if type(value) in (float, int) and math.isfinite(value) and abs(value) > limit:
                yield place, float(value)


def _limits(operands: Sequence[Operand], args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[Place, float]]:
    for place, value in _too_large(operands, args, kwargs):
        limit = min(torch.finfo(one.dtype).max for one in operands)
        yield place, math.copysign(limit, value)


def _is_written(function: str, place: Place) -> bool:
    """Tell whether a function writes into this argument, which then cannot be cast."""
    in_place = function in _IN_PLACE or (function.endswith("_") and not function.endswith("__"))
    return place[0] == "out" or (in_place and place[0] == 0)


def _code(site: CallSite, remedy: Remedy, operands: Sequence[Operand], values: dict[Place, Tensor]) -> str | None:
    """The line of code with the remedy in it."""

    def like(dtypes: Collection[object]) -> str | None:
        fitting = [one for one in operands if one.dtype in dtypes and one.place not in remedy]
        return next((f"{one.source}.dtype" for one in fitting if one.source), None)

    def rewrite(place: Place) -> Rewrite:
        new = remedy[place]
        if isinstance(new, torch.dtype):
            end = ".float()" if new == torch.float32 else f".to({like({new}) or new})"
            return lambda text: text + end
        dtype = like({one.dtype for one in operands}) or operands[0].dtype
        return lambda _: f"torch.finfo({dtype}).{'max' if new > 0 else 'min'}"

    return site.rewritten([(place, values.get(place), rewrite(place)) for place in remedy])
