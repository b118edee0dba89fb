"""The state that forward passes change: random number generators, and buffers such as running statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ampsweep.training.random_state import restore_rng_state, rng_state


@dataclass(frozen=True)
class KeptState:
    """The state before a forward pass, as far as it changes."""

    rng: Mapping[str, Any]
    """States of generators, as `rng_state` names them; those of torch as bytes, which are no memory of a training."""
    buffers: Mapping[str, Tensor]
    is_full: bool


class ForwardState:
    """Keeps the state before forward passes, and goes back to it.

    The whole state would cost tens of microseconds a step, most of it for NumPy's generator, which hardly any model
    draws from. Which parts change is learned from steps before which everything was kept: the first one, and any other
    that costs extra anyway.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._buffers, self._device = dict(model.named_buffers()), device
        self._has_learned = self._draws_on_host = False
        self._copies: dict[str, Tensor] = {}
        """Copies of the buffers that were seen to change."""

    def keep(self, *, in_full: bool = False, is_lasting: bool = False) -> KeptState:
        """Copy the state; nothing waits for the device.

        Args:
            is_lasting: what was kept stays when the next state is.
        """
        in_full = in_full or not self._has_learned
        rng = rng_state(self._device) if in_full or self._draws_on_host else self._rng_of_torch()
        rng = {name: _bytes(state) if isinstance(state, Tensor) else state for name, state in rng.items()}
        if in_full or is_lasting:
            names = self._buffers if in_full else self._copies
            return KeptState(rng, {name: self._buffers[name].clone() for name in names}, in_full)
        for name, copy in self._copies.items():
            copy.copy_(self._buffers[name])
        return KeptState(rng, self._copies, in_full)

    def learn(self, before: KeptState) -> None:
        """See what has changed since a state was kept in full; waits for the device."""
        self._has_learned = True
        for name, value in before.buffers.items():
            if not _is_same(value, self._buffers[name]):
                self._copies[name] = value
        now = rng_state(self._device)
        self._draws_on_host |= now["python"] != before.rng["python"]
        self._draws_on_host |= any(map(_differs, now["numpy"], before.rng["numpy"]))

    @torch.no_grad()
    def restore(self, before: KeptState) -> None:
        """Go back to a state that was kept."""
        for name, value in before.buffers.items():
            self._buffers[name].copy_(value)
        kept = {name: _tensor(state) if isinstance(state, bytes) else state for name, state in before.rng.items()}
        restore_rng_state({**rng_state(self._device), **kept}, self._device)

    def _rng_of_torch(self) -> dict[str, Any]:
        state: dict[str, Any] = {"torch": torch.get_rng_state()}
        if self._device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._device)
        if self._device.type == "mps":
            state["mps"] = torch.mps.get_rng_state()
        return state


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _is_same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _differs(one: Any, other: Any) -> bool:
    return not torch.equal(one, other) if isinstance(one, Tensor) else bool(one != other)
