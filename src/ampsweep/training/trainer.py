"""The training loop: a step that reads top to bottom, and what happens around it."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from ampsweep.config.schema import TrainerConfig
from ampsweep.data.base import Data
from ampsweep.precision import Precision
from ampsweep.tasks.base import Task
from ampsweep.training.batches import as_model_input
from ampsweep.training.evaluate import evaluate
from ampsweep.training.instruments import Instruments
from ampsweep.training.schedule import Schedule

COLLAPSED_SCALE = 2.0**-24
"""Below the smallest float16 number no scale can be the cause of an overflow: what is left is a broken loss."""


class Stop(Protocol):
    """Whether somebody asked the run to end."""

    @property
    def requested(self) -> bool: ...

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True)
class Ending:
    """Why training ended."""

    status: Literal["completed", "diverged", "interrupted"]
    error: str | None = None
    cut_short: str | None = None


@dataclass(slots=True)
class Step:
    """What a step leaves on the device: 0-dim tensors."""

    loss: Tensor
    grad_norm: Tensor | None
    learning_rate: float | Tensor


class Trainer:
    """Trains one model for a number of optimizer steps.

    Args:
        log: receives each history row, keyed by metric, and its step.
        progress: receives step and loss whenever a row is logged.
        save: writes a checkpoint of this trainer.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        data: Data,
        task: Task,
        precision: Precision,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        instruments: Instruments,
        config: TrainerConfig,
        num_steps: int,
        log: Callable[[Mapping[str, float], int], None],
        progress: Callable[[int, float], None],
        save: Callable[["Trainer"], None],
    ) -> None:
        self.model, self.data, self.task, self.precision = model, data, task, precision
        self.optimizer, self.schedule, self.instruments = optimizer, schedule, instruments
        self.config, self.num_steps = config, num_steps
        self._log, self._progress, self._save = log, progress, save
        self.step = 0
        self.next_batch = 0
        self.values: dict[str, float] = {}
        """The latest value of every logged metric."""
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def train(self, stop: Stop) -> Ending:
        """Train from the current step to the last one, or until something ends it."""
        self.model.train()
        began = time.perf_counter()
        with self.precision.flags():
            if self.step >= self.num_steps:  # resumed where nothing is left but the figures of the end
                self.values |= self.evaluate()
            while self.step < self.num_steps:
                self.step += 1
                with self.instruments.step():
                    step = self.train_step(norm_wanted=self._due(self.config.log_every))
                ending = self._ending(stop, time.perf_counter() - began)
                ending = self._record(step, ending) or ending
                if ending is not None:
                    return ending
                del step  # its tensors are not to be freed within the next step, which may be traced
        return Ending("completed")

    def train_step(self, *, norm_wanted: bool = False) -> Step:
        """One optimizer step over `grad_accum_steps` micro-batches; nothing here waits for the device."""
        precision, optimizer, instruments = self.precision, self.optimizer, self.instruments
        self.schedule.set(instruments.applied_steps())
        num_batches, loss = self.config.grad_accum_steps, None
        for _ in range(num_batches):
            with instruments.data_wait:
                batch = self.data.train_batch(self.next_batch)
            batch = self._prepare(batch)
            self.next_batch += 1
            with precision.autocast():
                micro_loss = self.task.loss(self.model, batch)
                if num_batches > 1:
                    micro_loss = micro_loss / num_batches
            precision.backward(micro_loss)
            loss = micro_loss.detach() if loss is None else loss + micro_loss.detach()
        assert loss is not None, "a step takes at least one batch"
        grad_norm = None
        if self.config.max_grad_norm is not None or norm_wanted:
            precision.unscale_(optimizer)
            grad_norm = self._clip()
        with instruments.watch_scale(precision.scale):
            precision.step(optimizer)
            precision.update()
        optimizer.zero_grad(set_to_none=True)
        return Step(loss, grad_norm, self.schedule.learning_rate())

    def evaluate(self) -> dict[str, float]:
        """Validation metrics now."""
        return evaluate(self.model, self.data, self.task, self.precision, self._prepare)

    def _clip(self) -> Tensor:
        limit = self.config.max_grad_norm
        if limit is not None:
            return nn.utils.clip_grad_norm_(self._parameters, limit)
        with self.instruments.own_time:  # nobody but a row asks for it
            return _total_norm([p.grad for p in self._parameters if p.grad is not None])

    def _record(self, step: Step, ending: Ending | None) -> Ending | None:
        """Log, evaluate and save what is due; returns an ending when the numbers call for one."""
        config, last = self.config, self.step == self.num_steps or ending is not None
        finishes = last and (ending is None or ending.status != "interrupted")
        row: dict[str, float] = {}
        if last or self._due(config.log_every):
            row |= self._read(step)
        if finishes or self._due(config.eval_every):
            row |= self.evaluate()
        if row:
            self.values |= row
            with self.instruments.own_time:
                self._log(row, self.step)
                self._progress(self.step, self.values.get("train/loss", math.nan))
        diverged = self._diverged(row) if row else None
        if diverged is None and (self._due(config.checkpoint_every) or (last and not finishes)):
            self._save(self)
        return diverged

    def _read(self, step: Step) -> dict[str, float]:
        """The step's row: everything that is on the device comes over in one copy."""
        self.instruments.wait()  # for the step itself, which is not our own time
        with self.instruments.own_time:
            values: dict[str, float | Tensor] = {"train/loss": step.loss, "train/lr": step.learning_rate}
            if step.grad_norm is not None:
                values["train/grad_norm"] = step.grad_norm
            values |= self.instruments.scale_values()
            return _copied(values) | self.instruments.row()

    def _diverged(self, row: Mapping[str, float]) -> Ending | None:
        scale = row.get("amp/scale")
        if scale is not None and scale < COLLAPSED_SCALE:
            return Ending("diverged", f"the scale collapsed to {scale:g} at step {self.step}")
        if scale is None and not math.isfinite(row.get("train/loss", 0.0)):
            return Ending("diverged", f"the training loss is {row['train/loss']} at step {self.step}")
        if not math.isfinite(row.get("val/loss", 0.0)):
            return Ending("diverged", f"the validation loss is {row['val/loss']} at step {self.step}")
        return None

    def _ending(self, stop: Stop, seconds: float) -> Ending | None:
        if stop.requested and self.step < self.num_steps:
            return Ending("interrupted", f"{stop.reason} after step {self.step} of {self.num_steps}")
        limit = self.config.max_seconds
        if limit is not None and seconds > limit and self.step < self.num_steps:
            reason = f"trainer.max_seconds={limit:g} reached after step {self.step} of {self.num_steps}"
            return Ending("completed", cut_short=reason)
        return None

    def _due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _prepare(self, batch: Any) -> Any:
        return as_model_input(batch, self.precision.parameters_dtype, channels_last=self.config.channels_last)


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """The 2-norm of all gradients as one vector, 0-dim on their device; the same bits as `get_total_norm`."""
    if {gradient.device.type for gradient in gradients} != {"cpu"}:
        return nn.utils.get_total_norm(gradients)
    # Its sorting by device and dtype pays where it saves kernel launches; here it takes longer than the norms.
    norms: list[Tensor] = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _copied(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """The values as numbers; those on the device (0-dim tensors, at least one) come over in one copy."""
    numbers: dict[str, float] = {}
    tensors: dict[str, Tensor] = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            tensors[key] = value.detach()
        else:
            numbers[key] = value
    scalars = [*tensors.values()]
    if len({scalar.dtype for scalar in scalars}) > 1:  # counts beside losses: a dtype that holds both
        wide = torch.float32 if scalars[0].device.type == "mps" else torch.float64
        scalars = [scalar.to(wide) for scalar in scalars]
    return numbers | dict(zip(tensors, torch.stack(scalars).tolist(), strict=True))
