"""Within the process of an examined command: the recording's watcher, which also observes the calls of its steps."""

import atexit
import math
import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ampsweep.doctor.diagnosis import DoctorFinding
from ampsweep.doctor.loss.findings import GradientsVanish, LossFinding, WrongScale
from ampsweep.doctor.loss.nonfinite_origins import NonfiniteOrigin, all_finite
from ampsweep.doctor.script import findings as kinds
from ampsweep.doctor.script import scaler_edits
from ampsweep.doctor.script.findings import change_of
from ampsweep.doctor.script.scaler_edits import Stack
from ampsweep.doctor.script.watched_calls import Product, WatchedCalls
from ampsweep.integrations.script.hooks import is_plain, scalar_of
from ampsweep.integrations.script.session import Session, error_of_process
from ampsweep.integrations.script.watcher import ScriptWatcher
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.step import parameters_of
from ampsweep.text import one_line
from ampsweep.user_code import CodeLine, place_of_caller

if TYPE_CHECKING:
    from ampsweep.integrations.own_training import OwnTraining

_FIRST: Final = 5  # steps observed at first
_LEFT_ALONE: Final = 40  # the least steps after them that are timed and traced
_SCALE: Final = 2.0**15  # which float16 can hold
_MOST_ZEROS: Final = 0.5  # of the elements of gradients
_LEAST_NORM: Final = 1e-3  # of gradients that somebody has limited with the scale in mind, when they are unscaled
_MANY_READS: Final = 32  # single numbers that a line reads in a step
_LEFT_ALONE_S: Final = 4.0  # the least time of these on an accelerator, which has to warm up


@dataclass(kw_only=True)
class ScriptObservations:
    """What a process of the command has seen."""

    findings: list[DoctorFinding] = field(default_factory=list)
    rank: int = 0
    num_steps: int = 0
    skip_origin: NonfiniteOrigin | None = None  # of the last observed step that was skipped after a finite loss
    init_scale: float | None = None  # of the scaler, if one that is enabled has stepped
    products: dict[Product, int] = field(default_factory=dict)
    autocasts: dict[str, CodeLine | None] = field(default_factory=dict)  # by types of devices, where it is switched on
    reads: dict[CodeLine, list[int]] = field(default_factory=dict)  # of single numbers, in steps with many at a line
    error: str | None = None  # that ended the script
    failure: str | None = None  # what failed in observing


class ExaminingWatcher(ScriptWatcher):
    def __init__(self, session: Session) -> None:
        assert session.examination is not None
        self._asked, self._seen, self._calls = session.examination, ScriptObservations(), WatchedCalls()
        self._scale_before, self._left_alone_at = math.inf, 0.0
        self._suspect: tuple[list[Tensor], CodeLine | None, Stack] | None = None  # most gradients were zero at its step
        self._forget_step()
        super().__init__(session)
        self.hooks.wrap(os, "_exit", lambda *_: self._report())
        self.hooks.wrap(torch.autocast, "__init__", self._autocast_made)
        self._calls.enter()
        atexit.register(self._report)

    def _forget_step(self) -> None:
        self._calls.begin_step()
        self._has_nonfinite_loss = self._is_unscaled = False
        self._given: list[object] = []  # losses that were given to a scaler
        self._backward: CodeLine | None = None

    @property
    def _step(self) -> int:
        return 1 if self._run is None else self._run.num_steps + 1

    @property
    def _is_explained(self) -> bool:
        """Return True once an inf or NaN has been found, behind which nothing more is looked for."""
        return any(isinstance(known, LossFinding) for known in self._seen.findings)

    def _add(self, finding: DoctorFinding | None) -> None:
        is_known = type(finding) in map(type, self._seen.findings)
        if finding is not None and not (is_known or self._is_explained):
            self._seen.findings.append(finding)

    def _autocast_made(
        self, _: object, device_type: str, dtype: object = None, enabled: bool = True, *__: object
    ) -> None:
        if enabled and device_type not in self._seen.autocasts:
            self._seen.autocasts[device_type] = place_of_caller()

    def loss_scaled(self, loss: object, scaled: object) -> None:
        with self._calls.paused():
            super().loss_scaled(loss, scaled)
        self._given.append(loss)

    def backward_begins(self, roots: object, gradients: object = None) -> None:
        with self._calls.paused():
            super().backward_begins(roots, gradients)
            for root in tensors_in(roots) if self._calls.is_on and gradients is None else ():
                if is_plain(root) and root.numel() == 1:
                    self._loss_known(root)

    def _loss_known(self, root: Tensor) -> None:
        self._is_unscaled, self._backward = all(given is root for given in self._given), place_of_caller()
        self._has_nonfinite_loss |= not all_finite([root])
        if (found := self._calls.nonfinite.source_of(root)) is not None:
            signs = kinds.ScriptSigns.at("nonfinite_loss", self._step, loss=float(scalar_of(root)))
            self._add(kinds.of_tensor(*found, self._calls.edits.get(found[1].made), signs))
        elif self._suspect is not None:
            self._calls.guard(self._look_at_zeros, root, *self._suspect)

    def _look_at_zeros(self, root: Tensor, trained: list[Tensor], step: CodeLine | None, use: Stack) -> None:
        """Find out if gradients are zero for want of scaling, from two more backward passes on the graph of a loss."""
        own, scaled = (
            torch.autograd.grad(root, trained, torch.full_like(root, by), retain_graph=True, materialize_grads=True)
            for by in (1, _SCALE)
        )
        are_there = [gradient.isfinite() & (gradient != 0) for gradient in scaled]
        num, scale, backward = sum(int(are.sum()) for are in are_there), self._seen.init_scale, self._backward
        num_lost = sum(int((are & (gradient == 0)).sum()) for are, gradient in zip(are_there, own, strict=True))
        self._suspect = None if num else self._suspect  # None of it may belong to this loss
        if num_lost > _MOST_ZEROS * num:
            signs = kinds.ScriptSigns.at("vanished_gradients", self._step, vanished_pct=100 * num_lost / num)
            also = [f"in a backward pass from {_SCALE:,.0f} times the loss that part of it is not zero"]
            kind = GradientsVanish if scale is None else WrongScale
            device = root.device.type if scale is None else None  # there is a scaler: none is to be made
            change = change_of(scaler_edits.with_scaler, use, backward, step, device)
            self._add(kind(signs=signs, init_scale=scale, place=backward, change=change, also=also))

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        with self._calls.paused():
            if self._calls.is_on and scaler.is_enabled():
                scale, step = scaler.get_scale(), place_of_caller()
                self._scale_before, self._seen.init_scale = scale, self._seen.init_scale or scale
                if self._is_unscaled and type(scaler).scale is GradScaler.scale:
                    change = change_of(scaler_edits.scaled, self._backward, step)
                    self._add(kinds.NotScaled(scale=scale, place=self._backward, change=change))
                if self._calls.limit is not None:
                    limited, order = self._calls.limit
                    norm = float(nn.utils.get_total_norm(_trained(optimizer).values(), order))
                    change, left = change_of(scaler_edits.unscaled, self._calls.gradients_use, step), norm / scale
                    if 0 < left < _LEAST_NORM:
                        self._add(kinds.LimitedScaled(scale=scale, norm=norm, left=left, place=limited, change=change))
            super().scaler_steps(scaler, optimizer)

    def scaler_updated(self, scaler: GradScaler) -> None:
        with self._calls.paused():
            is_known = self._calls.is_on and scaler.is_enabled() and not self._has_nonfinite_loss
            if is_known and scaler.get_scale() < self._scale_before:
                self._seen.skip_origin = self._calls.first_in_backward
            super().scaler_updated(scaler)

    def step_begins(self, optimizer: Optimizer) -> None:
        with self._calls.paused():
            if self._calls.is_on and not self._has_nonfinite_loss:
                trained, origin = _trained(optimizer), self._calls.first_in_backward
                gradients = [*trained.values()]
                num_zeros = sum(int((gradient == 0).sum()) for gradient in gradients)
                is_half = any(product.dtype == torch.float16 for product in self._calls.products)
                if self._seen.init_scale is None and origin is not None and not all_finite(gradients):
                    self._add(kinds.of_origin(origin, kinds.ScriptSigns.at("nonfinite_gradients", self._step)))
                elif is_half and num_zeros > _MOST_ZEROS * sum(gradient.numel() for gradient in gradients):
                    self._suspect = [*trained], place_of_caller(), self._calls.gradients_use
            super().step_begins(optimizer)

    def is_observed(self, run: "OwnTraining") -> bool:
        taken, calls = run.num_steps, self._calls
        self._seen.rank, self._seen.num_steps = run.rank, taken
        if taken == 0:  # within the first step
            return calls.is_on
        if self._asked.steps is not None and taken >= self._asked.steps:
            raise SystemExit(0)
        for place, num in calls.reads.items():
            if num >= _MANY_READS and place is not None:
                self._seen.reads.setdefault(place, []).append(num)
        calls.leave()
        self._forget_step()
        if self._is_wanted(taken, run) and not calls.is_on:
            calls.enter()
        return calls.is_on

    def _is_wanted(self, taken: int, run: "OwnTraining") -> bool:
        if self._calls.failure or self._is_explained:
            return False
        if taken < _FIRST or (self._asked.steps or math.inf) <= _FIRST + _LEFT_ALONE:  # too few for times
            return True
        self._left_alone_at = self._left_alone_at or perf_counter()
        least_s = 0.0 if run.device.type == "cpu" else _LEFT_ALONE_S
        return taken >= _FIRST + _LEFT_ALONE and perf_counter() - self._left_alone_at >= least_s

    def _report(self) -> None:
        seen = self._seen
        self._calls.guard(self._look_at_end)
        seen.products, seen.failure = dict(self._calls.products), self._calls.failure or None
        try:
            (Path(self._asked.folder) / f"{os.getpid()}.pickle").write_bytes(pickle.dumps(seen))
        except Exception as failure:  # noqa: BLE001 - the script ends as it would
            print(one_line(failure), *(found.sentence for found in seen.findings), sep="\n", file=sys.stderr)

    def _look_at_end(self) -> None:
        self._calls.leave()
        if isinstance(error := error_of_process(), Exception):
            self._seen.error, failed = one_line(error), self._calls.failure_of(error)
            if failed is not None and failed.casts:  # else that was no matter of dtypes
                self._seen.findings.append(failed.finding(step=self._step))

    def _forked(self) -> None:
        atexit.unregister(self._report)
        self._calls.failure = "forked"
        super()._forked()


def _trained(optimizer: Optimizer) -> dict[Tensor, Tensor]:
    """The parameters whose gradients can be read, with these."""
    held = ((parameter, parameter.grad) for parameter in parameters_of(optimizer))
    return {own: grad for own, grad in held if grad is not None and is_plain(grad) and grad.layout is torch.strided}


def observations(folder: Path) -> list[ScriptObservations]:
    """What the processes of a command have left, the first rank first."""
    found: list[Any] = [pickle.loads(file.read_bytes()) for file in sorted(folder.glob("*.pickle"))]
    return sorted(found, key=lambda seen: (seen.rank, -seen.num_steps))
