"""A training step of a rebuilt workload on a device that exists in sizes only, and the work of its operators."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

from ampsweep.observe.operator_work import OperatorWork, WorkLog
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.target_device import TargetDevice
from published.workloads import WORKLOADS, Batch, Workload

_TARGET: Final = TargetDevice("cuda", (8, 0))  # only the choice of a fused attention depends on the capability


class BertAdam(Optimizer):
    """The Adam of BERT's first port to PyTorch, kernel by kernel; the host reads each gradient's norm to clip it."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            gradient, state = parameter.grad, self.state[parameter]
            if not state:
                state.update(mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
            ratio = 1.0 / (torch.stack([gradient.norm(2)]).norm(2) + 1e-6)
            if ratio.item() < 2.0:  # it is: a fake number is 0 or 1
                gradient.mul_(ratio)
            state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
            state["square"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            update = state["mean"] / (state["square"].sqrt() + 1e-6)
            update += 0.01 * parameter
            parameter.add_(-(1e-5 * update))


_OPTIMIZERS: Final[dict[str, Callable[[Sequence[Tensor]], Optimizer]]] = {
    "bert_adam": BertAdam,
    "adamw_loop": partial(AdamW, foreach=False),
    "adamw_foreach": partial(AdamW, foreach=True),
    "adamw_fused": partial(AdamW, fused=True),
    "sgd": partial(SGD, lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=False),
    "sgd_foreach": partial(SGD, lr=0.01, foreach=True),
    "sgd_fused": partial(SGD, lr=0.01, fused=True),
    "momentum_fused": partial(SGD, lr=0.01, momentum=0.9, fused=True),
}
_DROPS_GRADIENTS: Final = (
    "adamw_foreach",
    "adamw_fused",
    "sgd_foreach",
    "sgd_fused",
    "momentum_fused",
)  # as torch does since these exist


def trace(recipe: str, batch_size: int, dtype: torch.dtype) -> list[OperatorWork]:
    """The work of a step's operators, in the order of the program; computed in this dtype as the recipe has it.

    A recipe is the name of a workload and options, as in "bert_large_squad adamw_fused o2 clip":
    - an optimizer; without one gradients accumulate, or are zeroed before the forward pass (`zero_grad`);
    - how half precision is used: `autocast`, with a gradient scaler for float16 unless `unscaled`; `o2` of apex, half
      parameters but for those of batch norms, and float32 masters; `half`, all parameters;
    - `nhwc`; `clip`, all gradients by their norm; `x4`, micro-batches in a step; `checkpoints` of layers;
      `input_gradient`;
    - where the host waits for the device: `reads_loss` after each backward pass, `sync` at the end, `untimed_loss`
      instead of the loss, whose forward pass is left out."""
    name, *options = recipe.split()
    workload, log = WORKLOADS[name], WorkLog()
    device = FakeDevice(_TARGET)
    model = device.adopt(_model(workload, dtype, options))
    num_micro_batches = next((int(option[1:]) for option in options if option.startswith("x")), 1)
    autocast = partial(torch.autocast, "cuda", dtype, enabled="autocast" in options and dtype != torch.float32)
    num_works: list[int] = []
    model.register_forward_hook(lambda *_: num_works.append(len(log.works)))
    with device():
        batch = _batch(workload, batch_size, next(model.parameters()).dtype, options)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        update = Update(model, options, dtype, device)
        update()  # creates the optimizer's state
        if update.drops_gradients:
            model.zero_grad(set_to_none=True)
        with device.trace_step(model, log=log):
            if "zero_grad" in options or (update.optimizer is not None and not update.drops_gradients):
                for parameter in model.parameters():
                    parameter.grad.zero_()  # type: ignore[union-attr]
            for _ in range(num_micro_batches):
                with autocast():
                    loss = workload.loss(model, batch)
                update.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                if "reads_loss" in options:
                    loss.item()
            update()
            if "sync" in options:
                loss.item()
    works = log.works
    if "untimed_loss" in options:
        backward = next(place for place, work in enumerate(works) if work.phase == "backward")
        works[num_works[0] : backward] = [OperatorWork("synchronize", "wait", "forward")]
    return works


def _model(workload: Workload, dtype: torch.dtype, options: Sequence[str]) -> nn.Module:
    with torch.device("meta"):
        model = workload.model()
    if "half" in options or "o2" in options:
        model.to(dtype)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and "o2" in options:
            module.float()
        if hasattr(module, "checkpoints"):
            module.checkpoints = "checkpoints" in options  # type: ignore[assignment]
    return model.to(memory_format=torch.channels_last) if "nhwc" in options else model  # type: ignore[call-overload]


def _batch(workload: Workload, size: int, dtype: torch.dtype, options: Sequence[str]) -> Batch:
    images, *rest = workload.batch(size)
    if images.is_floating_point():
        images = images.to(dtype, memory_format=torch.channels_last if "nhwc" in options else torch.contiguous_format)
    return images.requires_grad_("input_gradient" in options), *rest


class Update:
    """What follows the backward pass: unscaling, clipping, the optimizer; without an optimizer nothing."""

    def __init__(self, model: nn.Module, options: Sequence[str], dtype: torch.dtype, device: FakeDevice) -> None:
        kind = next(filter(_OPTIMIZERS.__contains__, options), None)
        parameters = [*model.parameters()]
        self._halves = [parameter for parameter in parameters if "o2" in options and parameter.dtype != torch.float32]
        self._masters = [half.detach().float() for half in self._halves]
        self._updated = [*self._masters, *(p for p in parameters if not self._masters or p.dtype == torch.float32)]
        self._clips = "clip" in options
        self.optimizer = None
        if kind is not None:
            with device.optimizers():
                self.optimizer = _OPTIMIZERS[kind](self._updated)
            updating = ExitStack()  # the scaler reads numbers outside
            self.optimizer.register_step_pre_hook(lambda *_: updating.enter_context(device.optimizers()))
            self.optimizer.register_step_post_hook(lambda *_: updating.close())
        self.drops_gradients = kind in _DROPS_GRADIENTS or bool(self._masters)
        is_scaled = kind is not None and "autocast" in options and dtype == torch.float16 and "unscaled" not in options
        self.scaler = torch.amp.GradScaler("cpu", enabled=is_scaled)
        self.scaler.scale(torch.zeros(()))  # creates its state

    def __call__(self) -> None:
        if self.optimizer is None:
            return
        with torch.no_grad():
            pairs = [pair for pair in zip(self._masters, self._halves, strict=True) if pair[1].grad is not None]
            masters, halves = [master for master, _ in pairs], [half.detach() for _, half in pairs]
            if pairs:  # a kernel unscales gradients and casts them
                for master in masters:
                    master.grad = torch.empty_like(master)
                torch._foreach_copy_(_gradients(masters), _gradients(half for _, half in pairs))
            if self._clips:
                self.scaler.unscale_(self.optimizer)
                clip_grad_norm_(self._updated, 1.0, foreach=self.drops_gradients)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if pairs:
                torch._foreach_copy_(halves, masters)


def _gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]
