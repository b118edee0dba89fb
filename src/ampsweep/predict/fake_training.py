"""A training on a fake device: the user's model, data, optimizer and step, at any batch size."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from timeit import repeat
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampsweep.config.errors import UserError
from ampsweep.config.modes import without_fp32_arithmetic
from ampsweep.config.schema import Config
from ampsweep.data.base import Data, for_rank
from ampsweep.data.batch_reader import copies_ahead
from ampsweep.nested_tensors import tensors_in
from ampsweep.observe.feeding import note_delivery, resident
from ampsweep.observe.operator_work import WorkLog
from ampsweep.observe.step import parameters_of
from ampsweep.parallel.base import SINGLE
from ampsweep.precision.float32_update import MASTER_WEIGHT
from ampsweep.precision.precision import cast_floating_point
from ampsweep.predict.fake_device import CPU, STAND_IN, FakeDevice
from ampsweep.predict.step_memory import Timeline, timeline
from ampsweep.predict.target_device import TargetDevice
from ampsweep.records.sections import UnvouchedOperator
from ampsweep.tasks.base import HasTurns, Loss, Losses, PrecedesStep, Task
from ampsweep.training.assembly import ShortValidation, assemble_trainer
from ampsweep.training.components.built import Built, adapt_model, build_around, build_data, build_model
from ampsweep.training.components.instantiate import build_component

if TYPE_CHECKING:
    from ampsweep.predict.fake_ranks import FakeRanks

_END: Final = object()


class FakeTraining:
    """The training of `config` on `target`, on a single rank; UserError if a part refuses its settings. For `others`
    see `FakeDevice`."""

    def __init__(
        self, config: Config, target: TargetDevice, world_size: int = 1, rank: int = 0, *others: TargetDevice
    ) -> None:
        self.config, self._device = config, FakeDevice(target, *others)
        self._ranks: FakeRanks | None = None
        if config.parallel.strategy != "single":
            from ampsweep.predict import fake_ranks  # slow: imports torch.distributed

            self._ranks = fake_ranks.FakeRanks(config.parallel, CPU, world_size, rank)
        self.model_size = 0
        self._varies: bool | None = None  # True if the first two batches differ in size; None before
        self._updating = ExitStack()  # also closed if an optimizer's step raises an error
        with self._as_rank():
            built = self._built()
            with self._device.setting_up():
                self.trainer = assemble_trainer(config, built, CPU)
                self.trainer.model.train()
            with self._device():
                self._take_first_step()

    @property
    def alike(self) -> list[TargetDevice]:
        """The target, and those of the others on which the steps traced so far are the same."""
        return self._device.alike

    @cached_property
    def reading_ms(self) -> float:
        """The time in which this host reads a batch."""
        data, indices = self._data(self.config.data["batch_size"]), count()
        return 1e3 * min(repeat(lambda: data.train_batch(next(indices)), number=1, repeat=3))

    def trace(self, batch_size: int, *, step: int = 2, evaluates: bool = False) -> Timeline:
        """Trace the step of this number (2 or more) and micro-batch size; the optimizer has its state.
        `evaluates`: also trace an evaluation after it, and count all resident tensors, as a memory limit does.
        UserError: the data does not have that many items. UntraceableError: the step depends on values."""
        del self.trainer.data  # resident for another batch size
        self.trainer.data = self._data(batch_size)
        self.trainer.step = step
        with self._as_rank(), self._device.setting_up():
            self.trainer.after_step(self.trainer.model)  # of the previous step; it may allocate averaged weights
            self.trainer.before_step(step)
        taken, trained = self._traced(step, evaluates=evaluates)
        if self._forget_state_except_of(trained):
            taken, _ = self._traced(step, evaluates=evaluates)
        return taken

    def _traced(self, number: int, *, evaluates: bool) -> tuple[Timeline, set[Tensor]]:
        """Trace the step; also return the parameters that had a gradient when their optimizer stepped."""
        trainer, device, data = self.trainer, self._device, self.trainer.data
        assert isinstance(data, _FakeData)
        trainer.next_batch = (number - 1) * trainer.config.grad_accum_steps * len(trainer.turns)
        if self._varies is None:
            data.train_batch(trainer.next_batch - 1)
        earlier = data.latest_sizes
        data.begin_at(trainer.next_batch)
        norm_wanted = evaluates or number % trainer.config.log_every == 0
        optimizers, log = trainer.optimizers.values(), WorkLog()
        tracing = device.trace_step(trainer.model, *optimizers, data=data.resident(), counts_unused=evaluates, log=log)
        with self._as_rank(), trainer.precision.flags(), device(), tracing as trace:
            begins: list[int] = []
            trained: set[Tensor] = set()

            def note(optimizer: Optimizer, *_: object) -> None:
                begins.append(trace.ledger.moment)
                trained.update(parameter for parameter in parameters_of(optimizer) if parameter.grad is not None)

            device.kernels.vouching.restart()
            hooks = [optimizer.register_step_pre_hook(note) for optimizer in optimizers]
            with self._updating:
                step = trainer.train_step(norm_wanted=norm_wanted)
            for hook in hooks:
                hook.remove()
            if evaluates:
                trainer.evaluate()  # the step's results are still alive, as in a training
            del step
        unvouched = device.kernels.vouching.called()
        if self._varies is None:
            self._varies = data.latest_sizes != earlier
        if self._varies:
            unvouched += (UnvouchedOperator(name="batches that vary in size", doubt="varies"),)
        if isinstance(trainer.task, PrecedesStep):
            unvouched += (UnvouchedOperator(name="a model that the task prepares for each step", doubt="varies"),)
        found = timeline(trace.ledger, optimizer_step=begins[0], unvouched=unvouched)
        forward, backward = (log.first_products.get(phase, 0) for phase in ("forward", "backward"))
        return replace(found, works=tuple(log.works), first_products=(forward, backward)), trained

    def _forget_state_except_of(self, trained: set[Tensor]) -> bool:
        """Drop optimizer state of parameters without gradients, except master weights; return True if any was there."""
        forgotten = False
        for optimizer in self.trainer.optimizers.values():
            for parameter in [parameter for parameter in optimizer.state if parameter not in trained]:
                state = optimizer.state.pop(parameter)
                if MASTER_WEIGHT in state:
                    optimizer.state[parameter] = {MASTER_WEIGHT: state[MASTER_WEIGHT]}
                forgotten = forgotten or state.keys() != {MASTER_WEIGHT}
        return forgotten

    def has_batch(self, batch_size: int) -> bool:
        try:
            data = self._data(batch_size)
            if data.num_train_batches is None:  # only reading shows how long a stream is
                data.train_batch(0)
        except ValueError:
            return False
        return True

    def _as_rank(self) -> AbstractContextManager[None]:
        return nullcontext() if self._ranks is None else self._ranks()

    def _built(self) -> Built:
        config = replace(self.config, trainer=replace(self.config.trainer, compile=False))
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = cast_floating_point(build_model(config), getattr(torch, config.precision.parameters))
        self.model_size = sum(parameter.numel() for parameter in model.parameters())
        model = self._device.adopt(model)
        data = self._data(config.data["batch_size"])
        with self._device.setting_up():
            parallel = SINGLE if self._ranks is None else self._ranks.parallel
            precision = parallel.precision(without_fp32_arithmetic(config.precision), CPU)
            precision.emulated = precision.why_emulated(config.precision, self._device.target.abilities)
            adapt_model(precision, model)
            task: Task = build_component("task", config.task)
            if self._ranks is not None:
                try:
                    model = self._ranks.distribute(model, precision, in_parts=isinstance(task, HasTurns))
                except ValueError as error:
                    raise UserError(str(error)) from error
            with self._device.optimizers():
                kind = torch.device(self._device.target.kind)
                built = build_around(config, precision, model, data, kind, task=task)
        turns = tuple(replace(turn, loss=partial(self._losses, turn.loss)) for turn in built.turns)
        return replace(built, turns=turns, parallel=parallel)

    def _losses(self, loss: Loss, model: nn.Module, batch: Any) -> Losses:
        """Compute a loss; its operators are attributed to the model's modules."""
        with self._device.kernels.forward_of(model):
            return loss(model, batch)

    def _data(self, batch_size: int) -> "_FakeData":
        config = replace(self.config, data=self.config.data | {"batch_size": batch_size})
        parallel = SINGLE if self._ranks is None else self._ranks.parallel
        with self._device.loading_data():
            data = for_rank(build_data(config, STAND_IN), parallel.rank, parallel.world_size)
            return _FakeData(data, self._device)

    def _take_first_step(self) -> None:
        """Create the optimizers' state as a first step that reaches all parameters, without forward and backward."""
        for optimizer in self.trainer.optimizers.values():
            optimizer.register_step_pre_hook(lambda *_: self._updating.enter_context(self._device.optimizers()))
            optimizer.register_step_post_hook(lambda *_: self._updating.close())
            for parameter in parameters_of(optimizer):
                parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
            with self._updating:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.trainer.instruments.count_update()


class _FakeData(ShortValidation):
    """Data that is read on the host with its values and delivered as fake tensors."""

    def __init__(self, data: Data, device: FakeDevice) -> None:
        super().__init__(data)
        self._device = device
        self._is_copied_ahead = device.target.kind == "cuda" and getattr(data, "copies_ahead", False)
        self._ahead: tuple[int, Any] | None = None  # index and batch of the pending copy, as in `CopiedAhead` on CUDA
        self.latest_sizes: list[int] = []  # elements of each tensor of the last batch

    def resident(self) -> list[Tensor]:
        return [*resident(self._data), *tensors_in(self._ahead or ())]

    def begin_at(self, index: int) -> None:
        """Set the state after the batch before this index was read."""
        if not self._is_copied_ahead:
            return
        with self._device.loading_data():
            batch = super().train_batch(index)
        self._ahead = (index, batch) if copies_ahead(batch, self.batch_size) else None

    def train_batch(self, index: int) -> Any:
        ahead, self._ahead = self._ahead, None
        with self._device.loading_data():
            batch = ahead[1] if ahead is not None and ahead[0] == index else super().train_batch(index)
            if self._is_copied_ahead and copies_ahead(batch, self.batch_size):
                self._ahead = index + 1, super().train_batch(index + 1)
        if self._ahead is not None:
            note_delivery(self._ahead[1])
        self.latest_sizes = [tensor.numel() for tensor in tensors_in(batch)]
        return batch

    def val_batches(self) -> Iterator[Any]:
        batches = super().val_batches()
        while True:
            with self._device.loading_data():
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch
