"""A trainer whose numerics are watched, and whose parameters no loss or gradient that is not finite may ruin."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ampsweep.data.base import Stateful
from ampsweep.monitors.numerics import NumericsWatch
from ampsweep.parallel.base import Stop
from ampsweep.training.build.optimizer import is_fused
from ampsweep.training.ending import Ending
from ampsweep.training.forward_state import ForwardState
from ampsweep.training.instruments import Instruments
from ampsweep.training.nonfinite_cause import (
    NonfiniteCause,
    find_bad_tensor,
    find_gradient,
    find_site,
    is_bad_batch,
)
from ampsweep.training.step_guard import BegunStep, DeviceGuard, HostGuard, NonfiniteStepError, TakenTurn
from ampsweep.training.trainer import Step, Trainer
from ampsweep.training.watched_instruments import WatchedInstruments


class WatchedTrainer(Trainer):
    """A trainer that looks into steps, notes which gradients make a scaler skip them, and guards its parameters.

    Where there is no scaler to skip it, a step whose loss or gradients are not finite is left out and ends the
    training, whose parameters are then those from before it: with a row and a checkpoint. Whatever number ends it, the
    forward pass of the last step is taken again to find where the number comes from.

    With a scaler and a fused optimizer on an accelerator only the device knows which steps are skipped: there, the
    gradients that are not finite are noted in the steps that are looked into.

    Args:
        instruments: those that say which steps are looked into.
        parts: the others of `Trainer`.
    """

    def __init__(self, *, instruments: Instruments, **parts: Any) -> None:
        assert isinstance(instruments, WatchedInstruments)
        precision, optimizers = parts["precision"], parts["optimizers"].values()
        self._is_host = precision.device.type == "cpu"
        self._plain_backward, self._plain_unscale_, self._plain_step = (
            precision.backward,
            precision.unscale_,
            precision.step,
        )
        self._guard: HostGuard | DeviceGuard | None = None
        """None where the scaler guards."""
        if not precision.config.grad_scaler:
            is_left_to_device = not self._is_host and all(map(is_fused, optimizers))
            self._guard = DeviceGuard(precision.device) if is_left_to_device else HostGuard()
        precision.backward, precision.unscale_ = self._backward_watched, self._unscale_watched
        precision.step = self._step_scaled if self._guard is None else self._step_guarded
        super().__init__(instruments=instruments, **parts)
        self.watch: NumericsWatch = instruments.watch
        self._is_stream = isinstance(self.data, Stateful)  # which takes longer to find out than the rest of the guard
        self._state = ForwardState(self.model, precision.device)
        self._begun: BegunStep | None = None
        self._norms: dict[torch.optim.Optimizer, Tensor] = {}
        """Norms by which the gradients of an optimizer were clipped in this turn."""
        self._have_seen: set[torch.optim.Optimizer] = set()
        """Optimizers whose gradients have been looked at in this turn."""

    def train_step(self, *, norm_wanted: bool = False) -> Step:
        """One step; see `Trainer.train_step`.

        Raises:
            NonfiniteStepError: this step, or one before it of which that was not known yet, was left out.
        """
        if self._guard is not None:
            self._guard.poll()
        is_lasting = isinstance(self._guard, DeviceGuard)
        before = self._state.keep(in_full=self.watch.is_looking, is_lasting=is_lasting)
        applied = self.instruments.applied_steps() if self._guard is not None else 0
        assert isinstance(applied, int), "without scaler the host counts"
        self._begun = BegunStep(self.step, self.next_batch, applied, before)
        step = super().train_step(norm_wanted=norm_wanted)
        self._begun.losses = {name: float(loss) if self._is_host else loss for name, loss in step.losses.items()}
        for turn in self._begun.turns:
            turn.losses.clear()
        if before.is_full:
            self._state.learn(before)
        return step

    def _next_batch(self) -> Any:
        batch = super()._next_batch()
        begun = self._begun
        assert begun is not None, "a batch belongs to a step"
        turns = begun.turns
        if not turns or len(turns[-1].batch_numbers) == self.config.grad_accum_steps:
            before = self._state.keep(in_full=begun.before.is_full, is_lasting=True) if turns else begun.before
            turns.append(TakenTurn(len(turns), before))
        turns[-1].batch_numbers.append(self.next_batch - 1)
        if self._is_stream:
            turns[-1].batches.append(batch)
        return batch

    def _clip(self, optimizer: torch.optim.Optimizer, *, norm_wanted: bool) -> list[Tensor]:
        norms = super()._clip(optimizer, norm_wanted=norm_wanted)
        if norms and self.config.max_grad_value is None:
            self._norms[optimizer] = norms[0]
        return norms

    def _backward_watched(self, *losses: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
        if self._begun is not None and self._begun.turns:
            self._begun.turns[-1].losses += [loss.detach() for loss in losses]
        self._plain_backward(*losses, inputs=inputs)

    def _unscale_watched(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients, once they have been seen; clipping comes next, which spreads NaN over all of them."""
        if self.watch.is_looking:
            self._see(optimizer)
        self._plain_unscale_(optimizer)
        if self._guard is None:
            self._note_skipped(optimizer)

    def _step_guarded(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the optimizer's step unless that would ruin the parameters, and look at what it makes of them."""
        begun = self._begun
        assert begun is not None, "an optimizer steps within a step"
        assert self._guard is not None, "without scaler somebody guards"
        if not self.watch.is_looking:
            self._guard.step(begun, self._plain_step, optimizer, self._norms.pop(optimizer, None))
            return
        self._see(optimizer)
        self.watch.before_update(optimizer)
        self._guard.step(begun, self._plain_step, optimizer, self._norms.pop(optimizer, None))
        self.watch.after_update(is_applied=True)
        self._have_seen.discard(optimizer)

    def _step_scaled(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the scaler take the optimizer's step or skip it, and look at what that makes of the parameters."""
        is_noted = bool(self.precision.found_nonfinite(optimizer))  # when the gradients were unscaled
        if self.watch.is_looking:
            self._see(optimizer)
            self.watch.before_update(optimizer)
        self._plain_step(optimizer)
        if not is_noted:
            self._note_skipped(optimizer)
        if self.watch.is_looking:
            self.watch.after_update(is_applied=not any(map(bool, self.precision.found_nonfinite(optimizer))))
        self._have_seen.discard(optimizer)

    def _see(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._have_seen:
            self._have_seen.add(optimizer)
            self.watch.see_gradients(optimizer)

    def _note_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        if (self._is_host or self.watch.is_looking) and any(map(bool, self.precision.found_nonfinite(optimizer))):
            self.watch.note_nonfinite(optimizer)

    def _train(self, stop: Stop) -> Ending:
        assert isinstance(self.instruments, WatchedInstruments)
        try:
            ending = super()._train(stop)
            if self._guard is not None:
                self._guard.poll(waits=True)
        except NonfiniteStepError as error:
            return self._end_before(error)
        return self._explained(ending) if ending.status == "diverged" else ending

    def _end_before(self, error: NonfiniteStepError) -> Ending:
        """End the training before a step that was left out."""
        begun = error.step
        with self.instruments.aside():
            self.watch.read_rest(begun.number)
            cause = self._cause(begun)
            self._state.restore(begun.before)
        losses = {name: torch.as_tensor(loss) for name, loss in begun.losses.items()}
        losses |= {self.turns[turn.index].name: torch.stack(turn.losses).sum() for turn in begun.turns if turn.losses}
        loss, norm = float(sum(losses.values())), error.norm
        if self.step == begun.number:  # else its row, if it has one, waits to be read
            self._rows.add(self.step, self._values(Step(losses, [] if norm is None else [norm])))
        self._flush()
        self._save_before(begun)
        what = f"the training loss is {loss}"
        if math.isfinite(loss):
            what = "the gradients are not finite" if norm is None else f"the norm of the gradients is {float(norm)}"
        return self._told(Ending("diverged", f"{what} at step {begun.number}"), cause)

    def _save_before(self, begun: BegunStep) -> None:
        """Save the training as it was before a step; a stream of data, which does not go back, as it is now."""
        self.step = begun.number - 1
        if not self._is_stream:
            self.next_batch = begun.next_batch
        self.instruments.load_state_dict({}, applied_steps=begun.applied_steps)
        with self.instruments.aside():
            self._save(self)
        self.step = begun.number

    def _explained(self, ending: Ending) -> Ending:
        """Find the cause of numbers that have ended a training after a step, and keep its parameters."""
        begun, cause = self._begun, NonfiniteCause()
        assert begun is not None, "the numbers are those of a step"
        state = self._state.keep(in_full=True)
        with self.instruments.aside():
            if not all(map(math.isfinite, begun.losses.values())):
                cause = self._cause(begun)
            elif (most := self.watch.most_often_first()) is not None:
                cause = NonfiniteCause(most_often_first=most)
            self._state.restore(state)
            if find_bad_tensor(self.model) is None:
                self._save(self)
        return self._told(ending, cause)

    def _told(self, ending: Ending, cause: NonfiniteCause) -> Ending:
        self.watch.nonfinite_site = cause.site
        clause = cause.clause()
        return ending if clause is None else replace(ending, error=f"{ending.error}: {clause}")

    def _cause(self, begun: BegunStep) -> NonfiniteCause:
        """Take the turns of a step again, from the same state, until it is found where a number is not finite."""
        self._state.restore(begun.before)
        if any(is_bad_batch(batch) for turn in begun.turns for batch in self._batches_of(turn)):
            return NonfiniteCause(has_bad_batch=True)
        if (name := find_bad_tensor(self.model)) is not None:
            return NonfiniteCause(bad_tensor=name)
        for turn in begun.turns:
            try:
                cause = self._cause_in(turn, begun.number)
            except Exception:  # noqa: BLE001  of the user's own code, which may not run twice; the end is known anyway
                return NonfiniteCause()
            finally:
                self.model.zero_grad(set_to_none=True)
            if cause != NonfiniteCause():
                return cause
        return NonfiniteCause()

    def _cause_in(self, taken: TakenTurn, step: int) -> NonfiniteCause:
        turn, batches = self.turns[taken.index], self._batches_of(taken)

        def losses(batch: Any) -> list[Tensor]:
            with self._autocast:
                return [one / self.config.grad_accum_steps for one in turn.losses(self.model, batch)]

        def backward() -> None:
            for batch in batches:
                self._plain_backward(*losses(batch), inputs=turn.inputs)

        self._state.restore(taken.before)
        site = find_site(self.model, lambda: [one for batch in batches for one in losses(batch)], step)
        if site is not None:
            return NonfiniteCause(site=site)
        self.model.zero_grad(set_to_none=True)
        self._state.restore(taken.before)
        return NonfiniteCause(gradient=find_gradient(self.model, backward))

    def _batches_of(self, turn: TakenTurn) -> list[Any]:
        return turn.batches or [self._prepare(self.data.train_batch(number)) for number in turn.batch_numbers]
