"""The training loop: the step, which reads top to bottom, and the logging, evaluation and saving around it."""

import math
from collections.abc import Callable, Iterable, Sequence
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
from ampsweep.observe.feeding import fed
from ampsweep.parallel.base import Stop
from ampsweep.recorder.divergence import Ending
from ampsweep.recorder.recorder import Recorder, do_nothing
from ampsweep.tasks.base import FollowsStep
from ampsweep.training.components.built import Built
from ampsweep.training.components.learning_rates import Schedule
from ampsweep.training.evaluate import evaluate
from ampsweep.training.update_observers import UpdateObserver


@dataclass(slots=True)
class Step:
    """The figures that a step leaves on the device: 0-dim tensors without gradient."""

    losses: dict[str, Tensor]
    """Those of its turns, by name; of a turn that was taken several times the last."""
    grad_norms: list[Tensor]
    """Those of its optimizers; none where nobody wants them."""

    @property
    def loss(self) -> Tensor:
        return _sum(self.losses.values())

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of all gradients as one vector; None where nobody wants it."""
        norms = self.grad_norms
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms)) if norms else None


class Trainer:
    """Trains one model for a number of optimizer steps.

    Args:
        built: the model and what it is trained with; the ranks of which this process is one call the same methods in
            the same order.
        recorder: encloses the steps and takes the rows.
        save: writes a checkpoint of this trainer.
        watchdog: limits the time of an evaluation by itself.
        observers: called around each update of an optimizer.
    """

    def __init__(
        self,
        built: Built,
        *,
        schedule: Schedule,
        recorder: Recorder,
        config: TrainerConfig,
        save: Callable[["Trainer"], None] = do_nothing,
        watchdog: Watchdog = UNWATCHED,
        observers: Sequence[UpdateObserver] = (),
    ) -> None:
        self.model, self.data, self.task, self.precision = built.model, built.data, built.task, built.precision
        self.optimizers, self.turns, self.num_steps = built.optimizers, built.turns, built.num_steps
        self.parallel, self.schedule, self.recorder, self.config = built.parallel, schedule, recorder, config
        self.instruments, self.observers = recorder.instruments, [*observers]
        self._save, self._watchdog = save, watchdog
        self.step = 0
        self.next_batch = 0
        self._prepare = partial(
            as_model_input, dtype=self.precision.parameters_dtype, channels_last=config.channels_last
        )
        self._autocast = self.precision.autocast()  # made once: torch asks the device whether it can, each time
        self._backward = self.parallel.backward(self.precision)
        self._parameters = {
            optimizer: [p for group in optimizer.param_groups for p in group["params"]]
            for optimizer in self.optimizers.values()
        }
        self._frozen = [(name, one) for name, one in self.model.named_parameters() if not one.requires_grad]
        self._clips = config.max_grad_norm is not None or config.max_grad_value is not None
        self.after_step = torch.no_grad()(built.task.after_step) if isinstance(built.task, FollowsStep) else do_nothing

    def train(self, stop: Stop) -> Ending:
        """Train from the current step to the last one, or until something ends it."""
        self.model.train()
        try:
            with self.precision.flags():
                return self._train(stop)
        except BaseException:
            with suppress(RuntimeError):  # what was logged before it failed, where the device still tells it
                self.recorder.flush()
            raise

    def _train(self, stop: Stop) -> Ending:
        if self.step >= self.num_steps:  # resumed where nothing is left but the figures of the end
            self.recorder.values |= self.evaluate()
        stop, now, recorder = self.parallel.agree(stop), self.parallel.now_s, self.recorder
        due_at, time_is_up_s = self._next_due(), now() + (self.config.max_seconds or math.inf)
        while self.step < self.num_steps:
            self.step += 1
            is_due = self.step >= due_at
            with recorder.step():
                step = self.train_step(norm_wanted=is_due and self._due(self.config.log_every))
            recorder.phase = "other"
            asked_by, now_s = stop.reason, now()
            if is_due or asked_by or now_s >= recorder.flush_due_s or now_s >= time_is_up_s:
                ending = self._ending(asked_by, time_is_up=now_s >= time_is_up_s)
                ending = self._record(step, ending, now_s) or ending
                if ending is not None:
                    return ending
                due_at = self._next_due()
            del step  # its tensors are not to be freed within the next step, which may be traced
        return Ending("completed")

    def train_step(self, *, norm_wanted: bool = False) -> Step:
        """One step: each turn of the task over `grad_accum_steps` micro-batches; nothing here waits for the device."""
        recorder, instruments = self.recorder, self.instruments
        if not self.schedule.is_constant:
            self.schedule.set(instruments.applied_steps())
        num_batches, step = self.config.grad_accum_steps, Step({}, [])
        for turn in self.turns:
            loss = None
            for _ in self.parallel.micro_batches(num_batches, turn.inputs):
                recorder.phase = "data"
                batch = self._next_batch()
                recorder.phase = "forward"
                with self._autocast:
                    losses = turn.losses(self.model, batch)
                    if num_batches > 1:
                        losses = [one / num_batches for one in losses]
                recorder.phase = "backward"
                self._backward(*losses, inputs=turn.inputs)
                loss = _value(losses) if loss is None else loss + _value(losses)
                del losses  # the rest of the step needs no more of them than their value
            assert loss is not None, "a step takes at least one batch"
            step.losses[turn.name] = loss
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
        """Let an optimizer take its step, or the scaler skip it; returns the norms that `_clip` returns."""
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
        """Get the next micro-batch in the form the model takes; the instruments get the time that the data took."""
        began_s = perf_counter()
        batch = fed(self.data.train_batch, self.next_batch)
        self.instruments.data_wait_s += perf_counter() - began_s
        self.next_batch += 1
        return self._prepare(batch)

    def evaluate(self) -> dict[str, float]:
        with self._watchdog.over(lambda: f"the evaluation after step {self.step}"), self.recorder.aside("eval"):
            return self._evaluate()

    def _evaluate(self, how: str | None = None) -> dict[str, float]:
        # Compiled, it would compile again: without gradients, in evaluation mode, and for a smaller last batch.
        with torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext():
            return evaluate(self.model, self.data, self.task, self.precision, self._prepare, how, self.parallel)

    def autocast_penalty(self) -> float | None:
        """Compute the validation loss under autocast minus that in full precision, of the weights as they are.

        One of the two is that of the last evaluation. None where the training uses no autocast, or has no validation.
        """
        known, config = self.recorder.values.get("val/loss"), self.precision.config
        if known is None or not config.autocast or self.precision.casts_by_policy:
            return None
        how = "full" if config.eval == "autocast" else "autocast"
        with self.precision.flags(), self._watchdog.over(lambda: f"the evaluation with precision.eval={how}"):
            other = self._evaluate(how)["val/loss"]
        return other - known if how == "autocast" else known - other

    def _clip(self, optimizer: torch.optim.Optimizer, *, norm_wanted: bool) -> list[Tensor]:
        """Clip the gradients of what an optimizer trains, if asked to, by themselves: it may skip its step alone.

        They are cut by value first, so that a single large one does not shrink all others with the norm. The norm from
        before clipping is returned in a list, which is empty where nobody wants it and clipping does not need it.
        """
        parameters, config = self._parameters[optimizer], self.config
        if config.max_grad_norm is not None and config.max_grad_value is None:
            return [self.parallel.clip_grad_norm_(parameters, config.max_grad_norm)]
        norms = [self._norm(parameters)] if norm_wanted else []
        if config.max_grad_value is not None:
            nn.utils.clip_grad_value_(parameters, config.max_grad_value)
            if config.max_grad_norm is not None:
                self.parallel.clip_grad_norm_(parameters, config.max_grad_norm)
        return norms

    def _norm(self, parameters: Sequence[Tensor]) -> Tensor:
        began = self.instruments.now()
        gradients = [grad for p in parameters if (grad := p.grad) is not None]
        norm = self.parallel.grad_norm(gradients, self.precision.device)
        self.instruments.own(began)  # nobody but a row asks for it
        return norm

    def _record(self, step: Step, ending: Ending | None, now_s: float) -> Ending | None:
        """Log, evaluate and save if due; return an ending if the numbers call for one."""
        config, recorder, last = self.config, self.recorder, self.step == self.num_steps or ending is not None
        finishes = last and (ending is None or ending.status != "interrupted")
        evaluates = finishes or self._due(config.eval_every)
        saves = self._due(config.checkpoint_every) or (last and not finishes)
        logs = last or self._due(config.log_every)
        num_skipped = self.instruments.num_last_skipped() if finishes else 0  # waits for the device
        validation = self.evaluate() if evaluates else {}
        if logs or validation:
            recorder.log(self._values(step) | validation if logs else validation, self.step, now_s=now_s)
        if last or evaluates or saves or now_s >= recorder.flush_due_s:
            recorder.flush(now_s)
        diverged = recorder.diverged
        if diverged is None and finishes:
            diverged = recorder.at_end(num_skipped)
        if diverged is None and saves:
            with recorder.aside():
                self._save(self)
        return diverged

    def _values(self, step: Step) -> dict[str, float | Tensor]:
        """Make the step's row with values still on the device; the recorder adds its own figures.

        Raises:
            ValueError: a parameter that no optimizer trains has been unfrozen.
        """
        if (unfrozen := next((name for name, one in self._frozen if one.requires_grad), None)) is not None:
            raise ValueError(
                f"{unfrozen} was frozen when the optimizers were built, and no longer is at step {self.step}: none of "
                "them trains it; leave requires_grad on while the model is built"
            )
        step.losses = self.parallel.mean(step.losses)
        values: dict[str, float | Tensor] = {"train/loss": step.loss, **self.schedule.values()}
        if len(step.losses) > 1:
            values |= {f"train/loss/{name}": loss for name, loss in step.losses.items()}
        if (grad_norm := step.grad_norm) is not None:
            values["train/grad_norm"] = grad_norm
        return values

    def _ending(self, asked_by: str, *, time_is_up: bool) -> Ending | None:
        if self.step == self.num_steps:
            return None
        if asked_by:
            return Ending("interrupted", f"{asked_by} after step {self.step} of {self.num_steps}")
        if time_is_up:
            limit = f"trainer.max_seconds={self.config.max_seconds:g}"
            return Ending("completed", cut_short=f"{limit} reached after step {self.step} of {self.num_steps}")
        return None

    def _due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _next_due(self) -> int:
        """Find the next step after which something is recorded; after all other steps there is nothing to do."""
        intervals = (self.config.log_every, self.config.eval_every, self.config.checkpoint_every)
        nexts = [self.step - self.step % every + every for every in intervals if every is not None]
        return min([self.num_steps, *nexts])


def _value(losses: Sequence[Tensor]) -> Tensor:
    """The sum of the losses without their graph, in a storage that holds nothing else.

    That of torch's `mse_loss` is as large as the model's outputs, and would stay as long as the loss does.
    """
    value = losses[0].detach()
    for loss in losses[1:]:
        value = value + loss.detach()
    return value if value.untyped_storage().nbytes() == value.element_size() else value.clone()


def _sum(values: Iterable[Tensor]) -> Tensor:
    """The sum of at least one tensor; of one, it itself."""
    first, *more = values
    return sum(more, first)
