"""State beside the weights, such as running means and counters, that rounding brings to a standstill."""

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.diagnosis import Change
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.side_by_side.recorded_step import storages
from ampsweep.doctor.smallest_change import smallest_change
from ampsweep.doctor.state.findings import StuckState, TriedMovement
from ampsweep.doctor.state.lost_updates import at_full_rate
from ampsweep.doctor.tensor_origins import held_tensors
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Call, observe
from ampsweep.precision.parameter_chunks import HALF
from ampsweep.training.checkpoint import Checkpoint
from ampsweep.user_code import CodeLine, place_of_caller

_KNOWN: Final = ("torch", "torchao", "ampsweep")  # whose optimizers keep state in half precision on purpose
_HORIZON: Final = 1000  # steps that state is followed, at least
_PROBE: Final = 2.0**-5  # the relative change that shows how much of a value a step keeps
_LEAST_KEPT: Final = 0.5  # of a value; what keeps less is made anew in each step
_MOST_LOST: Final = 0.5  # the share of elements, and of movement, that may be lost

Values = dict[str, Tensor]  # by the name of the state, in float64 on the host


@dataclass(frozen=True)
class _Expected:
    """A late value of each state, and where a float32 step takes it from there."""

    state: Checkpoint
    num_steps: int
    dtypes: Mapping[str, torch.dtype]
    late: Values
    after: Values
    moves: dict[str, Tensor]  # the elements of which both are known


@dataclass(frozen=True)
class _Stuck:
    unchanged: float  # the share of the elements that a step leaves unchanged
    moved: float  # the movement in float32's direction, as a share of it

    @property
    def is_stuck(self) -> bool:
        return self.unchanged >= _MOST_LOST and self.moved <= _MOST_LOST


def find_stuck_state(examined: ExaminedTraining) -> Iterator[StuckState]:
    """Find half-precision state that a step moves in float32 and not in its own dtype, one finding per line that writes
    it. A few steps do not show it: state that begins at zero grows until what is added is below half its spacing. So
    steps in float32 tell how a step maps each element (value -> kept * value + added), and this its later value."""
    replay = at_full_rate(examined.replay())
    replay.step()
    dtypes = {name: tensor.dtype for name, tensor in _state(replay) if tensor.dtype in HALF}
    if not dtypes:
        return
    lines: dict[str, CodeLine | None] = {}
    try:
        expected = _expected(examined, dtypes)
        found = {name: stuck for name, stuck in _stuck(replay, expected, lines).items() if stuck.is_stuck}
    except Exception:  # noqa: BLE001  the code may refuse values that it has not come to yet
        return
    by_line: dict[object, list[str]] = defaultdict(list)
    for name in found:
        by_line[lines.get(name) or name].append(name)
    known = {name for name, _ in replay.model.named_modules()}
    for names in by_line.values():
        modules = [owner for owner in dict.fromkeys(name.rpartition(".")[0] for name in names) if owner in known]
        yield _finding(examined, expected, {name: found[name] for name in names}, modules, lines.get(names[0]))


def _finding(
    examined: ExaminedTraining, expected: _Expected, found: dict[str, _Stuck], modules: list[str], line: CodeLine | None
) -> StuckState:
    share = 0.0

    def moves(replay: Replay) -> bool:
        nonlocal share
        at_full_rate(replay).step()
        after = _stuck(replay, expected, {})
        share = min(after[name].moved for name in found)
        return not any(after[name].is_stuck for name in found) and share > _MOST_LOST

    change = smallest_change(examined, line, [modules], moves)
    return StuckState(
        modules=modules,
        place=line,
        state=[*found],
        dtype=dtype_name(expected.dtypes[next(iter(found))]),
        num_steps=expected.num_steps,
        unchanged_pct=100 * min(stuck.unchanged for stuck in found.values()),
        moved_pct=100 * max(stuck.moved for stuck in found.values()),
        change=change or Change(),
        proof=None if change is None else TriedMovement(mends=True, moved_pct=100 * share),
    )


def _state(replay: Replay) -> Iterator[tuple[str, Tensor]]:
    """All floating-point tensors that the training holds by name, except for trained weights and the state of known
    optimizers."""
    trained = {id(parameter) for parameter in replay.model.parameters() if parameter.requires_grad}
    optimizers = [one for one in replay.trainer.optimizers.values() if type(one).__module__.split(".")[0] not in _KNOWN]
    for _, name, tensor in held_tensors(replay.model, optimizers, replay.trainer.task):
        if id(tensor) not in trained and tensor.is_floating_point() and tensor.layout is torch.strided:
            yield name, tensor


def _expected(examined: ExaminedTraining, dtypes: Mapping[str, torch.dtype]) -> _Expected:
    replay, num_before = at_full_rate(examined.baseline()), len(examined.own_steps.steps)
    for _ in range(num_before):
        replay.step()
    num_steps = max(replay.trainer.num_steps - replay.trainer.step, _HORIZON)
    state = replay.state()
    start = _values(replay, dtypes)
    once = _stepped(replay, state, start)
    late: Values = {}
    predicted: Values = {}
    moves: dict[str, Tensor] = {}
    probes = {
        name: torch.where(once[name] != value, value.abs() * _PROBE + (once[name] - value).abs(), 0.0)
        for name, value in start.items()
        if name in once
    }
    probed = _stepped(replay, state, {name: start[name] + probe for name, probe in probes.items()})
    for name in [name for name in probes if name in probed]:
        value, added, eps = start[name], once[name] - start[name], torch.finfo(dtypes[name]).eps
        kept = ((probed[name] - once[name]) / probes[name]).clamp(max=1.0)
        half_life = torch.where(kept < 1.0, math.log(0.5) / kept.log(), math.inf).clamp(max=float(num_steps))
        factor = torch.where(kept < 1.0, (1.0 - kept**half_life) / (1.0 - kept), half_life)  # a sum keeps all
        moves[name] = (added != 0) & (kept > _LEAST_KEPT)
        late[name] = torch.where(moves[name], value + added * factor, value).to(dtypes[name]).double()
        predicted[name] = added + (kept - 1.0) * (late[name] - value)
        is_far = (late[name] - value).abs() > eps * late[name].abs()
        if int((moves[name] & is_far).sum()) < _MOST_LOST * int((added != 0).sum()):
            is_far = torch.zeros_like(is_far)
        moves[name] &= is_far
    after = _stepped(replay, state, late)
    for name in [*moves]:
        error = (after[name] - late[name] - predicted[name]).abs() if name in after else math.inf
        moves[name] &= error <= predicted[name].abs() / 2
        if not moves[name].any():
            del moves[name]
    return _Expected(state, num_steps, dtypes, late, after, moves)


def _stepped(replay: Replay, state: Checkpoint, values: Values) -> Values:
    """The values of the same tensors after a step from a training's state in which they are replaced."""
    replay.restore(state)
    with torch.no_grad():
        for name, tensor in _state(replay):
            if name in values and values[name].shape == tensor.shape:
                tensor.copy_(values[name])
    replay.step()
    return {name: now for name, now in _values(replay, values).items() if now.shape == values[name].shape}


def _values(replay: Replay, names: Container[str]) -> Values:
    return {name: t.detach().to("cpu", torch.float64, copy=True) for name, t in _state(replay) if name in names}


def _stuck(replay: Replay, expected: _Expected, lines: dict[str, CodeLine | None]) -> dict[str, _Stuck]:
    """Compare a step from the late values with that in float32; `lines` gets the line that last writes each state."""
    writers: dict[int, CodeLine | None] = {}

    def on_call(call: Call, args: Any, _: object, result: Any) -> None:
        written = storages(args[:1] if call.operator.endswith("_") else result)
        views = set() if call.operator.endswith("_") else storages(args)
        writers.update(dict.fromkeys(written - views, place_of_caller()))

    with observe(replay.model, on_call, places=False):
        after = _stepped(replay, expected.state, {name: expected.late[name] for name in expected.moves})
    lines |= {name: writers.get(next(iter(storages(tensor)))) for name, tensor in _state(replay)}
    found = {}
    for name, moves in expected.moves.items():
        if name in after:
            change, wide = ((values[name] - expected.late[name])[moves] for values in (after, expected.after))
            moved = float((change * wide.sign()).sum() / wide.abs().sum())
            found[name] = _Stuck(float((change == 0).double().mean()), moved)
    return found
