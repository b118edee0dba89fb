"""Optimizers whose update computes in float32, whatever dtypes parameters, gradients and state are kept in."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampsweep.precision.pieces import HALF, Piece, Scratch, copy_all, flat, gradient_of, is_dense, is_of, rounds_of
from ampsweep.precision.rounding import KernelNoise, RoundingNoise, joined, noise_for

MASTER_WEIGHT: Final = "master_weight"
"""The key of a master weight in an optimizer's state."""

ELEMENTWISE: Final = (
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)
"""torch's optimizers that update each element of a parameter by itself, so that any part of it can be updated alone."""

_OF_A_SCALER: Final = ("grad_scale", "found_inf")
_SHARE: Final = 16
"""A round has this part of the elements, so that what is cast for it takes at most a byte a parameter."""
_ROUNDS: Final = {"cpu": (2**16, 2**20)}
"""The fewest and the most elements of a round: on a CPU what is cast is to stay in its caches."""
_ROUNDS_ELSEWHERE: Final = (2**24, 2**26)
"""The same elsewhere: calls for fewer elements would take the host longer than the device."""

Build = Callable[[Sequence[nn.Parameter]], Optimizer]


class Keeping(Enum):
    """The way in which parameters narrower than float32 are kept from one update to the next."""

    NEAREST = "rounded to nearest"
    STOCHASTIC = "rounded stochastically"
    MASTER = "rounded to nearest from float32 master weights, which are kept beside them"


class Float32Update(Optimizer):
    """An elementwise optimizer whose update is taken in float32 on one part of the elements after the other.

    What is kept in half precision is cast for the update and rounded after it. From outside it is an ordinary optimizer
    of the model's parameters, whose state has what the class keeps for each, and master weights.

    Args:
        parameters: the model's, floating-point and dense.
        build: builds the optimizer of the class, of parameters that stand for these in float32, in their order.
        keeping: how parameters in half precision are kept.
        state_dtype: float32 or bfloat16, in which tensors of a parameter's shape are kept. bfloat16 is rounded as the
            parameters are, and beside float32 ones stochastically: rounded to nearest, a second moment with beta2=0.999
            would not decay, as a step changes it by less than half the distance of two numbers.
        values: known float32 values that parameters were rounded from, with which master weights begin.
        device: the device of the parameters, or of those that they stand for.
        seed: of stochastic rounding.

    Raises:
        ValueError: the class is not one of `ELEMENTWISE`, or a parameter is sharded or not dense in memory.
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
        rounds_to_nearest = keeping is Keeping.NEAREST and any(one.dtype in HALF for one in parameters)
        draws = keeping is Keeping.STOCHASTIC or (state_dtype in HALF and not rounds_to_nearest)
        stand_ins = [self._stand_in(parameter, values or {}) for parameter in parameters]
        self.inner = build(stand_ins)
        """The optimizer of the class; between updates it has no parameters."""
        if type(self.inner) not in ELEMENTWISE:
            wanted = {
                Keeping.NEAREST: "another dtype of state or gradients than the parameters'",
                Keeping.STOCHASTIC: "stochastic rounding",
                Keeping.MASTER: "an update of float32 master weights",
            }[keeping]
            raise ValueError(
                f"{wanted} needs a class that updates each element by itself, which {type(self.inner).__name__} is not "
                f"known to do; torch's {', '.join(one.__name__ for one in ELEMENTWISE)} do"
            )
        of = dict(zip(stand_ins, parameters, strict=True))
        groups = [{**group, "params": [of[one] for one in group["params"]]} for group in self.inner.param_groups]
        super().__init__(groups, self.inner.defaults)
        self.param_groups[0].setdefault("num_updates", 0)
        self._step_supports_amp_scaling = getattr(self.inner, "_step_supports_amp_scaling", False)
        for one, parameter in of.items():
            if keeping is Keeping.MASTER and one is not parameter:
                self.state[parameter][MASTER_WEIGHT] = one.detach()
        device = device or parameters[0].device
        smallest, largest = _ROUNDS.get(device.type, _ROUNDS_ELSEWHERE)
        share = sum(parameter.numel() for parameter in parameters) // _SHARE
        self._rounds = [*rounds_of(self.param_groups, min(max(share, smallest), largest))]
        self._noise = noise_for(parameters[0], device) if draws else None
        for one, parameter in of.items():
            if one in self.inner.state:  # made at once, as by Adagrad in torch 2.11
                self.state[parameter].update(self._loaded(parameter, self.inner.state[one]))
        self._begin_with_state()
        self._let_go()

    def _stand_in(self, parameter: nn.Parameter, values: Mapping[nn.Parameter, Tensor]) -> nn.Parameter:
        """The parameter as the class sees it: in float32, with memory of its own only if it is a master weight."""
        if parameter.dtype not in HALF:
            return parameter
        if self._keeping is Keeping.MASTER:
            return nn.Parameter(values[parameter] if parameter in values else parameter.detach().float())
        return nn.Parameter(torch.empty((), device=parameter.device).expand(parameter.shape))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take the step."""
        self.param_groups[0]["num_updates"] += 1
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update((key, value) for key, value in own.items() if key != "params")
        for name in _OF_A_SCALER:
            if hasattr(self, name):
                setattr(self.inner, name, getattr(self, name))
        try:
            self._update_in_rounds()
        finally:
            for name in _OF_A_SCALER:
                if hasattr(self.inner, name):
                    delattr(self.inner, name)

    def _update_in_rounds(self) -> None:
        scratch = Scratch(max((sum(piece.size for piece in one) for one in self._rounds), default=0))
        noise = self._noise and self._noise(self._seed, self.param_groups[0]["num_updates"])
        try:
            for pieces in self._rounds:
                self._update([piece for piece in pieces if piece.parameter.grad is not None], scratch, noise)
        finally:
            self._let_go()

    def _update(self, pieces: Sequence[Piece], scratch: Scratch, noise: RoundingNoise | KernelNoise | None) -> None:
        if not pieces:
            return
        kept = [piece.of(self._kept(piece.parameter)) for piece in pieces]
        works = scratch.in_float32("parameters", pieces, kept)
        gradients = [piece.of(gradient_of(piece.parameter)) for piece in pieces]
        gradients = scratch.in_float32("gradients", pieces, gradients)
        stored = [self._stored(piece) for piece in pieces]
        loaded = _loaded(pieces, stored, scratch)
        for work, gradient in zip(works, gradients, strict=True):
            work.grad = gradient
        for group in self.inner.param_groups:
            group["params"] = []
        for piece, work in zip(pieces, works, strict=True):
            self.inner.param_groups[piece.group]["params"].append(work)
        given = [{**piece.counts, **parts} for piece, parts in zip(pieces, loaded, strict=True)]
        self.inner.state = defaultdict(dict, zip(works, given, strict=True))
        if hasattr(self.inner, "found_inf"):
            begin_momentum(self.inner)
        self.inner.step()
        rounds = None if noise is None else noise.rounds(sum(piece.size for piece in pieces), pieces[0].place)
        is_master = self._keeping is Keeping.MASTER
        to_store = [piece.of(piece.parameter.detach()) for piece in pieces] if is_master else kept
        narrow = [(to, work) for to, work in zip(to_store, works, strict=True) if to.dtype in HALF]
        _store(narrow, rounds if self._keeping is Keeping.STOCHASTIC else None)
        states = [self.inner.state[work] for work in works]
        for piece, state, to, parts, work in zip(pieces, states, stored, loaded, works, strict=True):
            self._find_new(piece, state, to, parts, work)
        for key in dict.fromkeys(key for to in stored for key in to):
            values = [
                (to[key], s[key], of.get(key)) for to, s, of in zip(stored, states, loaded, strict=True) if key in to
            ]
            _store([(to, now) for to, now, given in values if to.dtype in HALF or now is not given], rounds)

    def _kept(self, parameter: nn.Parameter) -> Tensor:
        """The tensor that a parameter's update begins with."""
        master: Tensor | None = self.state[parameter].get(MASTER_WEIGHT)
        return parameter.detach() if master is None else master

    def _stored(self, piece: Piece) -> dict[str, Tensor]:
        """The piece's parts of its parameter's state, as they are stored."""
        if not piece.is_begun:  # other pieces of the parameter may have made place for it
            return {}
        of = self.state[piece.parameter].items()
        return {key: piece.of(value) for key, value in of if key != MASTER_WEIGHT and is_of(piece.parameter, value)}

    def _find_new(
        self,
        piece: Piece,
        state: Mapping[str, Any],
        stored: dict[str, Tensor],
        loaded: dict[str, Tensor],
        work: Tensor,
    ) -> None:
        """Keep the counts that a piece's update has left, and give what is new in its state a place."""
        parameter, kept, piece.is_begun = piece.parameter, self.state[piece.parameter], True
        for key, value in state.items():
            if not isinstance(value, Tensor) or value.dim() == 0 or value.shape != work.shape:
                piece.counts[key] = value
                if piece.begin == 0:
                    kept[key] = value
            elif key not in stored:
                dtype = self._state_dtype if value.dtype == torch.float32 else value.dtype
                if dtype == value.dtype and piece.is_whole:
                    kept[key] = value
                    loaded[key] = value
                elif key not in kept:
                    kept[key] = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
                stored[key] = piece.of(kept[key])

    def _let_go(self) -> None:
        """Hold nothing that was cast for the update."""
        for group in self.inner.param_groups:
            group["params"] = []
        self.inner.state = defaultdict(dict)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of this class or of the inner one, in any dtype.

        A parameter without a master weight in it goes on from its own value.
        """
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        masters = {p: state[MASTER_WEIGHT] for p, state in self.state.items() if MASTER_WEIGHT in state}
        num_updates = self.param_groups[0]["num_updates"]
        super().load_state_dict({**state_dict, "state": {}})
        self.param_groups[0].setdefault("num_updates", num_updates)
        parameters = [one for group in self.param_groups for one in group["params"]]
        saved = dict(zip(parameters, (state_dict["state"].get(number, {}) for number in numbers), strict=True))
        for parameter, state in saved.items():
            if (master := masters.get(parameter)) is not None:
                self.state[parameter][MASTER_WEIGHT] = master.copy_(state.get(MASTER_WEIGHT, parameter.detach()))
            self.state[parameter].update(self._loaded(parameter, state))
        self._begin_with_state()

    def _begin_with_state(self) -> None:
        """Have the pieces go on from the state that there is."""
        for pieces in self._rounds:
            for piece in pieces:
                state = self.state.get(piece.parameter, {})
                of = {key: value for key, value in state.items() if key != MASTER_WEIGHT}
                piece.is_begun = bool(of)
                piece.counts = {k: copy.deepcopy(v) for k, v in of.items() if not is_of(piece.parameter, v)}

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
    """The class that the user has chosen: that of the optimizer, or of the one whose update is taken in float32."""
    return type(optimizer.inner if isinstance(optimizer, Float32Update) else optimizer)


def begin_momentum(optimizer: Optimizer) -> None:
    """Give a fused SGD zero momentum where it has none yet.

    torch leaves the momentum uninitialized for the first step's kernel to fill, which does nothing if the scaler has
    found a non-finite gradient (`_fused_sgd` in torch/optim/sgd.py, torch 2.13). After zeros the first applied step
    makes the momentum equal to the gradient, as torch's own first step does.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if group["fused"] and group["momentum"] and not group["dampening"]:
            for parameter in group["params"]:
                if parameter.grad is not None and optimizer.state[parameter].get("momentum_buffer") is None:
                    optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter.grad)


def _loaded(pieces: Sequence[Piece], stored: Sequence[dict[str, Tensor]], scratch: Scratch) -> list[dict[str, Tensor]]:
    """The stored parts of each piece's state in float32."""
    loaded: list[dict[str, Tensor]] = [{} for _ in stored]
    for key in dict.fromkeys(key for one in stored for key in one):
        having = [number for number, one in enumerate(stored) if key in one]
        of = [pieces[number] for number in having]
        parts = scratch.in_float32(key, of, [stored[number][key] for number in having])
        for number, part in zip(having, parts, strict=True):
            loaded[number][key] = part
    return loaded


def _store(pairs: Sequence[tuple[Tensor, Tensor]], rounds: Iterator[Callable[[Tensor], None]] | None) -> None:
    """Copy the second tensor of each pair to the first: those in half precision rounded stochastically by the next of
    `rounds`, or to nearest where there are none."""
    narrow = [] if rounds is None else [(to, value) for to, value in pairs if to.dtype in HALF]
    if rounds is None or not narrow:
        copy_all(pairs)
        return
    block = joined([flat(value) for _, value in narrow])
    next(rounds)(block)
    rounded = torch.split(block, [value.numel() for _, value in narrow])
    copy_all([(flat(to), one) for (to, _), one in zip(narrow, rounded, strict=True)])
    copy_all([(to, value) for to, value in pairs if to.dtype not in HALF])
