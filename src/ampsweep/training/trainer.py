"""The training loop: the step, which reads top to bottom, and the logging, evaluation and saving around it."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from ampsweep.config.schema import TrainerConfig
from ampsweep.data.base import as_model_input
from ampsweep.launch.watchdog import UNWATCHED, Watchdog
from ampsweep.metrics import CLIPPED
from ampsweep.observe.feeding import fed
from ampsweep.parallel.base import Stop
from ampsweep.recorder.divergence import Ending
from ampsweep.recorder.recorder import Recorder, do_nothing
from ampsweep.tasks.base import FollowsStep, Metrics, PrecedesStep, at_least_float32, with_metrics
from ampsweep.training.components.built import Built
from ampsweep.training.components.learning_rates import Schedule
from ampsweep.training.components.optimizer import clipped_together
from ampsweep.training.evaluate import evaluate
from ampsweep.training.turns import preparation
from ampsweep.training.update_observers import UpdateObserver
from ampsweep.training.validation_watch import ValidationWatch


@dataclass(slots=True)
class Step:
    """The results of a step, still on the device: 0-dim tensors without gradient."""

    losses: dict[str, Tensor]  # by turn; the last loss of a turn that was taken several times
    metrics: dict[str, list[Tensor]]  # what the task returned beside its losses, by micro-batch
    grad_norms: list[Tensor]  # one per optimizer, or group with a limit of its own; complete if requested

    def add(self, metrics: Metrics, loss: Tensor) -> None:
        """Add the metrics of a micro-batch; numbers become tensors like its loss."""
        for name, value in metrics.items():
            kept = _value([value.to(loss.device)]) if isinstance(value, Tensor) else loss.new_full((), value)
            self.metrics.setdefault(name, []).append(kept)

    @property
    def loss(self) -> Tensor:
        first, *others = self.losses.values()
        return sum(others, first)

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of all gradients as one vector; None unless requested."""
        norms = self.grad_norms
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms)) if norms else None


class Trainer:
    """Trains one model for a number of optimizer steps. All ranks call the same methods in the same order.

    The `recorder` measures the steps and receives the rows, `save` writes a checkpoint of this trainer, the `watchdog`
    limits the duration of each evaluation, and `observers` are called around each optimizer update. `validation`
    follows the evaluations, and `keep_best` writes the weights after the best so far.
    """

    def __init__(
        self,
        built: Built,
        *,
        schedule: Schedule,
        recorder: Recorder,
        config: TrainerConfig,
        validation: ValidationWatch,
        save: Callable[["Trainer"], None] = do_nothing,
        keep_best: Callable[["Trainer"], None] = do_nothing,
        watchdog: Watchdog = UNWATCHED,
        observers: Sequence[UpdateObserver] = (),
    ) -> None:
        self.model, self.data, self.task, self.precision = built.model, built.data, built.task, built.precision
        self.optimizers, self.turns, self.num_steps = built.optimizers, built.turns, built.num_steps
        self.parallel, self.schedule, self.recorder, self.config = built.parallel, schedule, recorder, config
        self.instruments, self.observers = recorder.instruments, [*observers]
        self._save, self._watchdog, self._keep_best, self.validation = save, watchdog, keep_best, validation
        self.step = self.next_batch = 0
        self._prepare = partial(
            as_model_input, dtype=self.precision.parameters_dtype, channels_last=config.channels_last
        )
        self._autocast = self.precision.autocast()  # made once: torch queries the device each time
        self._backward = self.parallel.backward(self.precision)
        self._clipped = {one: clipped_together(one, config.max_grad_norm) for one in self.optimizers.values()}
        self.max_norms = [limit for turn in self.turns for one in turn.optimizers for _, limit in self._clipped[one]]
        """The limit of each norm of a step; None: not clipped by norm."""
        self._frozen = [(name, p) for name, p in self.model.named_parameters() if not p.requires_grad]
        self._clips = config.max_grad_value is not None or any(self.max_norms)
        task = built.task
        self.before_step = preparation(task, self.model, self.turns) if isinstance(task, PrecedesStep) else do_nothing
        self.after_step = torch.no_grad()(task.after_step) if isinstance(task, FollowsStep) else do_nothing

    def train(self, stop: Stop) -> Ending:
        """Train from the current step to the last, or until a stop, a time limit or divergence ends the training."""
        self.model.train()
        try:
            with self.precision.flags():
                return self._train(stop)
        except BaseException:
            with suppress(RuntimeError):  # keep the rows logged so far, if the device can still be read
                self.recorder.flush()
            raise

    def _train(self, stop: Stop) -> Ending:
        early = self.validation.early_end(self.step, self.num_steps)
        if self.step >= self.num_steps or early:  # resumed after the last step
            self.recorder.values |= self.evaluate()  # only the final evaluation is left
            return early or Ending("completed")
        stop, now, recorder = self.parallel.agree(stop), self.parallel.now_s, self.recorder
        due_at, deadline_s = self._next_due(), now() + (self.config.max_seconds or math.inf)
        while self.step < self.num_steps:
            self.step += 1
            is_due = self.step >= due_at
            with recorder.step():
                step = self.train_step(norm_wanted=is_due and self._due(self.config.log_every))
            recorder.phase = "other"
            stop_reason, now_s = stop.reason, now()
            if is_due or stop_reason or now_s >= recorder.flush_due_s or now_s >= deadline_s:
                ending = self._ending(stop_reason, time_is_up=now_s >= deadline_s)
                ending = self._record(step, ending, now_s)
                if ending is not None:
                    return ending
                due_at = self._next_due()
            del step  # free its tensors here, not within the next step, which may be traced
        return Ending("completed")

    def train_step(self, *, norm_wanted: bool = False) -> Step:
        """Take each turn of the task over `grad_accum_steps` micro-batches, without waiting for the device."""
        recorder, instruments = self.recorder, self.instruments
        if not self.schedule.is_constant:
            self.schedule.set(instruments.applied_steps())
        num_batches, step = self.config.grad_accum_steps, Step({}, {}, [])
        if self.before_step(self.step):
            instruments.examine_again()
        for turn in self.turns:
            total = None
            for _ in self.parallel.micro_batches(num_batches, turn.inputs):
                recorder.phase = "data"
                batch = self._next_batch()
                recorder.phase = "forward"
                with self._autocast:
                    losses, metrics = with_metrics(turn.loss(self.model, batch))
                    if num_batches > 1:
                        losses = [part / num_batches for part in losses]
                recorder.phase = "backward"
                self._backward(*losses, inputs=turn.inputs)
                total = _value(losses) if total is None else total + _value(losses)
                if metrics:
                    step.add(metrics, total)
                del losses, metrics  # the rest of the step needs only their values
            assert total is not None, "a step takes at least one batch"
            step.losses[turn.name] = total
            recorder.phase = "optimizer"
            for optimizer in turn.optimizers:
                step.grad_norms += self._update(optimizer, norm_wanted=norm_wanted)
            if turn.ends_round:
                self.precision.update()
                recorder.count_update(ends_step=turn is self.turns[-1])
            for optimizer in turn.optimizers:
                optimizer.zero_grad(set_to_none=True)
        self.after_step(self.model)
        return step

    def _update(self, optimizer: torch.optim.Optimizer, *, norm_wanted: bool) -> list[Tensor]:
        """Unscale and clip if needed, then step (or let the scaler skip it); return the norms from `_clip`."""
        norms = []
        for observer in self.observers:
            observer.before_update(optimizer)
        if norm_wanted or self._clips:
            self.precision.unscale_(optimizer)
            for observer in self.observers:
                observer.after_unscale(optimizer)
            norms = self._clip(optimizer, norm_wanted=norm_wanted)
        for observer in self.observers:
            observer.before_step(optimizer)
        self.precision.step(optimizer)
        for observer in self.observers:
            observer.after_step(optimizer)
        return norms

    def _next_batch(self) -> Any:
        """Load the next micro-batch, converted for the model, and report the time spent waiting for data."""
        began_s = perf_counter()
        batch = fed(self.data.train_batch, self.next_batch)
        self.instruments.data_wait_s += perf_counter() - began_s
        self.next_batch += 1
        return self._prepare(batch)

    def evaluate(self, media: dict[str, Any] | None = None) -> dict[str, float]:
        """Evaluate; `media`, if given, gets the images and tables that the task shows."""
        with self._watchdog.over(lambda: f"the evaluation after step {self.step}"), self.recorder.aside("eval"):
            return self._evaluate(media=media)

    def _evaluate(self, how: str | None = None, media: dict[str, Any] | None = None) -> dict[str, float]:
        parts = self.model, self.data, self.task, self.precision, self._prepare
        # Eager, because no_grad, eval mode and a smaller last batch would each trigger a recompilation.
        with torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext():
            return evaluate(*parts, how, self.parallel, media)

    def autocast_penalty(self) -> float | None:
        """Return the validation loss under autocast minus the full-precision one, for the current weights.

        The last evaluation provides one of the two losses. None without autocast or without validation data.
        """
        known, config = self.recorder.values.get("val/loss"), self.precision.config
        if known is None or not config.autocast or self.precision.casts_by_policy:
            return None
        how = "full" if config.eval == "autocast" else "autocast"
        with self.precision.flags(), self._watchdog.over(lambda: f"the evaluation with precision.eval={how}"):
            other = self._evaluate(how)["val/loss"]
        return other - known if how == "autocast" else known - other

    def _clip(self, optimizer: torch.optim.Optimizer, *, norm_wanted: bool) -> list[Tensor]:
        """Clip the gradients of one optimizer, by value first, so that one outlier does not shrink all others.

        Each optimizer is clipped by itself, since the scaler may skip the steps of some, and so is each of its groups
        with a limit of its own. Returns their norms before clipping, as far as requested or needed for clipping.
        """
        norms, max_value = [], self.config.max_grad_value
        for parameters, max_norm in self._clipped[optimizer]:
            if max_norm is not None and max_value is None:
                norms.append(self.parallel.clip_grad_norm_(parameters, max_norm))
                continue
            if norm_wanted:
                began = self.instruments.now()
                gradients = [grad for p in parameters if (grad := p.grad) is not None]
                norms.append(self.parallel.grad_norm(gradients, self.precision.device))
                self.instruments.own(began)  # computed only for a row
            if max_value is not None:
                nn.utils.clip_grad_value_(parameters, max_value)
                if max_norm is not None:
                    self.parallel.clip_grad_norm_(parameters, max_norm)
        return norms

    def _record(self, step: Step, ending: Ending | None, now_s: float) -> Ending | None:
        """Log, evaluate and save if due; return how the training ends, which may be divergence or an early end."""
        config, recorder = self.config, self.recorder
        is_stopped = ending is not None and ending.status == "interrupted"
        last = ending is not None or self.step == self.num_steps
        evaluates, logs = self._due(config.eval_every) or (last and not is_stopped), self._due(config.log_every)
        values = self._values(step) if last or logs or evaluates else {}  # with the learning rate of this step
        validation: dict[str, Any] = {}
        is_best = False
        if evaluates:
            media: dict[str, Any] = {}
            validation = self.evaluate(media)
            is_whole = not getattr(self.data, "is_partial", False)  # a part lacks metrics
            is_best = is_whole and self.validation.follow(validation, self.step)
            ending = ending or self.validation.early_end(self.step, self.num_steps)
            last = last or ending is not None
            validation |= recorder.kept(media, self.step)
        finishes, saves = last and not is_stopped, self._due(config.checkpoint_every) or is_stopped
        if last or logs or validation:
            recorder.log({**(values if last or logs else {}), **validation}, self.step, now_s=now_s)
        if last or evaluates or saves or now_s >= recorder.flush_due_s:
            recorder.flush(now_s)
        diverged = recorder.diverged
        if diverged is None and finishes:
            diverged = recorder.at_end()  # waits for the device
        if diverged is None and (saves or is_best):
            with recorder.aside():
                if is_best:
                    self._keep_best(self)
                if saves:
                    self._save(self)
        return diverged or ending

    def _values(self, step: Step) -> dict[str, float | Tensor]:
        """Return the step's row, its values still on the device; the recorder adds its own figures."""
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise ValueError(
                    f"{name} was frozen when the optimizers were built and is not frozen at step {self.step}: no "
                    "optimizer trains it; leave requires_grad on while the model is built, and let the task freeze it "
                    "in before_step"
                )
        step.losses = self.parallel.mean(step.losses)
        values: dict[str, float | Tensor] = {"train/loss": step.loss}
        if step.metrics:
            means = {f"train/{name}": at_least_float32(torch.stack(some)).mean() for name, some in step.metrics.items()}
            values |= self.parallel.mean(means)
        if (rate := self.schedule.learning_rate()) is not None:
            values["train/lr"] = rate
        if len(step.losses) > 1:
            values |= {f"train/loss/{name}": loss for name, loss in step.losses.items()}
        if (grad_norm := step.grad_norm) is not None and len(step.grad_norms) == len(self.max_norms):
            values["train/grad_norm"] = grad_norm
            if len(self.max_norms) > 1 and self.config.max_grad_value is None:
                limits = zip(step.grad_norms, self.max_norms, strict=True)
                if over := [norm > limit for norm, limit in limits if limit is not None]:
                    values[CLIPPED] = 100.0 * torch.stack(over).any()
        return values

    def _ending(self, stop_reason: str, *, time_is_up: bool) -> Ending | None:
        after = f"after step {self.step} of {self.num_steps}"
        if stop_reason and self.step < self.num_steps:
            return Ending("interrupted", f"{stop_reason} {after}")
        if time_is_up and self.step < self.num_steps:
            return Ending("completed", cut_short=f"trainer.max_seconds={self.config.max_seconds:g} reached {after}")
        return None

    def _due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _next_due(self) -> int:
        """Return the next step after which something is logged, evaluated or saved."""
        intervals = (self.config.log_every, self.config.eval_every, self.config.checkpoint_every)
        nexts = [self.step - self.step % every + every for every in intervals if every is not None]
        return min([self.num_steps, *nexts])


def _value(losses: Sequence[Tensor]) -> Tensor:
    """Sum up the losses, detached, in a storage of its own (that of `mse_loss` is as large as the outputs)."""
    first, *others = (loss.detach() for loss in losses)
    value = sum(others, first)
    return value if value.untyped_storage().nbytes() == value.element_size() else value.clone()
