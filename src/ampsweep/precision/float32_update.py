"""Optimizers that update in float32 whatever dtypes parameters, gradients and state are stored in."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from ampsweep.precision.parameter_chunks import (
    HALF,
    Chunk,
    Scratch,
    copy_all,
    flat,
    gradient_of,
    is_dense,
    is_of,
    rounds_of,
)
from ampsweep.precision.stochastic_rounding import KernelNoise, RoundingNoise, joined, noise_for

MASTER_WEIGHT: Final = "master_weight"

ELEMENTWISE: Final = (
    *(optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax),
    *(optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD),
)
"""torch's optimizers that update each element independently, so that any part of a parameter can be updated alone."""

_SCALER_ATTRIBUTES: Final = ("grad_scale", "found_inf")
_SHARE: Final = 16
"""A round has a 16th of the elements, so that its float32 copies take at most a byte per parameter."""
_ROUNDS: Final = {"cpu": (2**16, 2**20)}
"""Fewest and most elements of a round: the copies are to stay in a CPU's caches."""
_ROUNDS_ELSEWHERE: Final = (2**24, 2**26)
"""On other devices: launching kernels for fewer elements would take the host longer than the device."""

Build = Callable[[Sequence[nn.Parameter]], Optimizer]


class Keeping(Enum):
    """How parameters narrower than float32 are rounded for storage; what needs an update in float32, in errors."""

    NEAREST = "another dtype of state or gradients than the parameters'"
    STOCHASTIC = "stochastic rounding"
    MASTER = "an update of float32 master weights"  # from which parameters are rounded to nearest


class Float32Update(Optimizer):
    """An elementwise optimizer that updates in float32, one chunk of the elements after the other.

    Half-precision tensors are cast for the update and rounded after it. From outside it is an ordinary optimizer of the
    model's parameters; its state is that of the wrapped class, and master weights.

    Args:
        parameters: the model's, floating-point and dense.
        build: builds the wrapped optimizer from float32 stand-ins for the parameters, in their order.
        keeping: how half-precision parameters are stored.
        state_dtype: float32 or bfloat16, for elementwise state. bfloat16 is rounded as the parameters are, and with
            float32 parameters stochastically: rounded to nearest, a second moment with beta2=0.999 would never decay,
            since a step changes it by less than half the distance of two numbers.
        values: float32 values that parameters were rounded from, with which master weights begin.
        device: the device that the parameters are on, or will be on.
        seed: of stochastic rounding.

    Raises:
        ValueError: the class is not in `ELEMENTWISE`, or a parameter is sharded or not dense in memory.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        build: Build,
        keeping: Keeping,
        *,
        state_dtype: torch.dtype = torch.float32,
        values: Mapping[nn.Parameter, Tensor] | None = None,
        device: torch.device | None = None,
        seed: int = 0,
    ) -> None:
        for parameter in parameters:
            if hasattr(parameter, "device_mesh"):
                raise ValueError("an update in float32 does not take sharded parameters")
            if not is_dense(parameter):
                raise ValueError("an update in float32 takes parameters that lie densely in memory")
        self._keeping, self._state_dtype, self._seed = keeping, state_dtype, seed
        rounds_to_nearest = keeping is Keeping.NEAREST and any(parameter.dtype in HALF for parameter in parameters)
        needs_noise = keeping is Keeping.STOCHASTIC or (state_dtype in HALF and not rounds_to_nearest)
        stand_ins = [self._stand_in(parameter, values or {}) for parameter in parameters]
        self.inner = build(stand_ins)
        """The wrapped optimizer; it has parameters during an update only."""
        if type(self.inner) not in ELEMENTWISE:
            name, known = type(self.inner).__name__, ", ".join(kind.__name__ for kind in ELEMENTWISE)
            raise ValueError(
                f"{keeping.value} needs a class that updates each element by itself, which {name} is not known to do; "
                f"torch's {known} do"
            )
        original = dict(zip(stand_ins, parameters, strict=True))
        groups = [{**group, "params": [original[p] for p in group["params"]]} for group in self.inner.param_groups]
        super().__init__(groups, self.inner.defaults)
        self.param_groups[0].setdefault("num_updates", 0)
        self._step_supports_amp_scaling = getattr(self.inner, "_step_supports_amp_scaling", False)
        for stand_in, parameter in original.items():
            if keeping is Keeping.MASTER and stand_in is not parameter:
                self.state[parameter][MASTER_WEIGHT] = stand_in.detach()
        device = device or parameters[0].device
        smallest, largest = _ROUNDS.get(device.type, _ROUNDS_ELSEWHERE)
        share = sum(parameter.numel() for parameter in parameters) // _SHARE
        self._rounds = [*rounds_of(self.param_groups, min(max(share, smallest), largest))]
        self._noise = noise_for(parameters[0], device) if needs_noise else None
        for stand_in, parameter in original.items():
            if stand_in in self.inner.state:  # made by the constructor, as by Adagrad's in torch 2.11
                self.state[parameter].update(self._loaded(parameter, self.inner.state[stand_in]))
        self._begin_with_state()
        self._release()

    def _stand_in(self, parameter: nn.Parameter, values: Mapping[nn.Parameter, Tensor]) -> nn.Parameter:
        """A float32 parameter for the wrapped class, with memory of its own only if it is a master weight."""
        if parameter.dtype not in HALF:
            return parameter
        if self._keeping is Keeping.MASTER:
            return nn.Parameter(values[parameter] if parameter in values else parameter.detach().float())
        return nn.Parameter(torch.empty((), device=parameter.device).expand(parameter.shape))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step; a sparse gradient, as of an embedding with `sparse=True`, becomes dense."""
        self.param_groups[0]["num_updates"] += 1
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update((key, value) for key, value in own.items() if key != "params")
        for name in _SCALER_ATTRIBUTES:
            if hasattr(self, name):
                setattr(self.inner, name, getattr(self, name))
        try:
            scratch = Scratch(max((sum(chunk.size for chunk in chunks) for chunks in self._rounds), default=0))
            noise = self._noise and self._noise(self._seed, self.param_groups[0]["num_updates"])
            for chunks in self._rounds:
                self._update([chunk for chunk in chunks if chunk.parameter.grad is not None], scratch, noise)
        finally:
            self._release()
            for name in _SCALER_ATTRIBUTES:
                if hasattr(self.inner, name):
                    delattr(self.inner, name)

    def _update(self, chunks: Sequence[Chunk], scratch: Scratch, noise: RoundingNoise | KernelNoise | None) -> None:
        if not chunks:
            return
        sources = [c.of(self.state[c.parameter].get(MASTER_WEIGHT, c.parameter.detach())) for c in chunks]
        works = scratch.in_float32("parameters", chunks, sources)
        gradients = [chunk.of(gradient_of(chunk.parameter)) for chunk in chunks]
        gradients = scratch.in_float32("gradients", chunks, gradients)
        stored = [self._stored(chunk) for chunk in chunks]
        loaded = _loaded(chunks, stored, scratch)
        self._release()
        for chunk, work, gradient in zip(chunks, works, gradients, strict=True):
            work.grad = gradient
            self.inner.param_groups[chunk.group]["params"].append(work)
        states = [{**chunk.counts, **tensors} for chunk, tensors in zip(chunks, loaded, strict=True)]
        self.inner.state = defaultdict(dict, zip(works, states, strict=True))
        if hasattr(self.inner, "found_inf"):
            begin_momentum(self.inner)
        self.inner.step()
        rounds = None if noise is None else noise.rounds(sum(chunk.size for chunk in chunks), chunks[0].place)
        is_master = self._keeping is Keeping.MASTER
        targets = [chunk.of(chunk.parameter.detach()) for chunk in chunks] if is_master else sources
        narrow = [(to, work) for to, work in zip(targets, works, strict=True) if to.dtype in HALF]
        _store(narrow, rounds if self._keeping is Keeping.STOCHASTIC else None)
        states = [self.inner.state[work] for work in works]
        for chunk, state, to, before, work in zip(chunks, states, stored, loaded, works, strict=True):
            self._add_new_state(chunk, state, to, before, work)
        for key in dict.fromkeys(key for to in stored for key in to):
            having = [parts for parts in zip(stored, states, loaded, strict=True) if key in parts[0]]
            values = [(to[key], state[key], before.get(key)) for to, state, before in having]
            _store([(to, now) for to, now, before in values if to.dtype in HALF or now is not before], rounds)

    def _stored(self, chunk: Chunk) -> dict[str, Tensor]:
        if not chunk.is_begun:  # the state may exist already because of other chunks of the parameter
            return {}
        state = self.state[chunk.parameter].items()
        return {key: chunk.of(value) for key, value in state if key != MASTER_WEIGHT and is_of(chunk.parameter, value)}

    def _add_new_state(
        self, chunk: Chunk, state: Mapping[str, Any], stored: dict[str, Tensor], loaded: dict[str, Tensor], work: Tensor
    ) -> None:
        """Store the counts after a chunk's update, and allocate storage for new elementwise state."""
        parameter, kept, chunk.is_begun = chunk.parameter, self.state[chunk.parameter], True
        for key, value in state.items():
            if not isinstance(value, Tensor) or value.dim() == 0 or value.shape != work.shape:
                chunk.counts[key] = value
                if chunk.begin == 0:
                    kept[key] = value
            elif key not in stored:
                dtype = self._state_dtype if value.dtype == torch.float32 else value.dtype
                if dtype == value.dtype and chunk.is_whole:
                    kept[key] = value
                    loaded[key] = value
                elif key not in kept:
                    kept[key] = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
                stored[key] = chunk.of(kept[key])

    def _release(self) -> None:
        for group in self.inner.param_groups:
            group["params"] = []
        self.inner.state = defaultdict(dict)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of this class or of the wrapped class, in any dtype.

        Without a master weight in the state, a parameter's master weight is its own value.
        """
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        masters = {p: state[MASTER_WEIGHT] for p, state in self.state.items() if MASTER_WEIGHT in state}
        num_updates = self.param_groups[0]["num_updates"]
        super().load_state_dict({**state_dict, "state": {}})
        self.param_groups[0].setdefault("num_updates", num_updates)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        saved = dict(zip(parameters, (state_dict["state"].get(number, {}) for number in numbers), strict=True))
        for parameter, state in saved.items():
            if (master := masters.get(parameter)) is not None:
                self.state[parameter][MASTER_WEIGHT] = master.copy_(state.get(MASTER_WEIGHT, parameter.detach()))
            self.state[parameter].update(self._loaded(parameter, state))
        self._begin_with_state()

    def _begin_with_state(self) -> None:
        for chunk in (chunk for chunks in self._rounds for chunk in chunks):
            state = {k: v for k, v in self.state.get(chunk.parameter, {}).items() if k != MASTER_WEIGHT}
            chunk.is_begun = bool(state)
            chunk.counts = {k: copy.deepcopy(v) for k, v in state.items() if not is_of(chunk.parameter, v)}

    def _loaded(self, parameter: nn.Parameter, state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in state.items():
            if key == MASTER_WEIGHT:
                continue
            if not is_of(parameter, value):
                yield key, copy.deepcopy(value)
                continue
            dtype = self._state_dtype if value.is_floating_point() else value.dtype
            yield key, torch.empty_like(parameter, dtype=dtype, requires_grad=False).copy_(value)


def class_of(optimizer: Optimizer) -> type[Optimizer]:
    """The class that the user chose, without the wrapper."""
    return type(optimizer.inner if isinstance(optimizer, Float32Update) else optimizer)


def begin_momentum(optimizer: Optimizer) -> None:
    """Initialize missing momentum of a fused SGD with zeros.

    torch leaves the momentum uninitialized for the kernel of the first step, which does nothing if the scaler found a
    non-finite gradient (`_fused_sgd` in torch/optim/sgd.py, torch 2.13). From zeros, the first applied step makes the
    momentum equal to the gradient, as torch's own first step does.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"] and not group["dampening"]:
            for parameter in group["params"]:
                if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter.grad)


def _loaded(chunks: Sequence[Chunk], stored: Sequence[dict[str, Tensor]], scratch: Scratch) -> list[dict[str, Tensor]]:
    loaded: list[dict[str, Tensor]] = [{} for _ in stored]
    for key in dict.fromkeys(key for state in stored for key in state):
        having = [(chunk, to, state) for chunk, to, state in zip(chunks, loaded, stored, strict=True) if key in state]
        cast = scratch.in_float32(key, [chunk for chunk, _, _ in having], [state[key] for _, _, state in having])
        for (_, to, _), tensor in zip(having, cast, strict=True):
            to[key] = tensor
    return loaded


def _store(pairs: Sequence[tuple[Tensor, Tensor]], rounds: Iterator[Callable[[Tensor], None]] | None) -> None:
    """Copy the second tensor of each pair to the first; half-precision targets are rounded by the next function of
    `rounds`, or to nearest without."""
    narrow = [] if rounds is None else [(to, value) for to, value in pairs if to.dtype in HALF]
    if rounds is None or not narrow:
        copy_all(pairs)
        return
    block = joined([flat(value) for _, value in narrow])
    next(rounds)(block)
    rounded = torch.split(block, [value.numel() for _, value in narrow])
    copy_all([(flat(to), values) for (to, _), values in zip(narrow, rounded, strict=True)])
    copy_all([(to, value) for to, value in pairs if to.dtype not in HALF])
