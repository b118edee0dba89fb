"""State beside the weights, such as running means and counters, that rounding brings to a standstill."""

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.doctor.diagnosis import DoctorFinding, TriedChange
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.side_by_side.recorded_step import storages
from ampsweep.doctor.smallest_change import smallest_change
from ampsweep.doctor.state.lost_updates import Movement, at_full_rate
from ampsweep.doctor.tensor_origins import held_tensors
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.calls import Call, observe
from ampsweep.precision.parameter_chunks import HALF
from ampsweep.text import listed
from ampsweep.training.checkpoint import Checkpoint
from ampsweep.user_code import CodeLine, place_of_caller

_KNOWN: Final = ("torch", "torchao", "ampsweep")  # whose optimizers keep state in half precision on purpose
_HORIZON: Final = 1000  # steps that state is followed, at least
_LEAST_KEPT: Final = 0.5  # of a value; what keeps less is made anew in each step
_MOSTLY: Final = 0.9  # of float32's movement, which a change must bring back
_MOST_KEPT: Final = 1 - 2.0**-30  # a sum keeps all

Values = dict[str, Tensor]  # by the name of the state, in float64 on the host


class StuckState(DoctorFinding):
    template = "{dtype} rounds away what steps add to {all_state}{at}"
    complaint = "numerics"
    seen = (
        "half-way to rest, or at the training's end, {unchanged_pct} of it does not change in a step, which moves it "
        "by {moved_pct} of what float32 does",
    )
    remedy = "keep it in float32"
    state: list[str]
    dtype: str
    unchanged_pct: float
    moved_pct: float

    @property
    def all_state(self) -> str:
        return listed(self.state, 2)


@dataclass(frozen=True)
class _LateState:
    """Late values of state, and what a float32 step adds to them: NaN where it is not what was expected."""

    checkpoint: Checkpoint
    values: Values
    added: Values

    def movements(self, replay: Replay) -> dict[str, tuple[Movement, CodeLine | None]]:
        """What a training's own step does to the values, and the line that last writes each."""
        writers: dict[int, CodeLine | None] = {}

        def on_call(call: Call, args: Any, _: object, result: Any) -> None:
            is_in_place = call.operator.endswith("_")
            written = storages(args[:1]) if is_in_place else storages(result) - storages(args)
            writers.update(dict.fromkeys(written, place_of_caller()))

        with observe(replay.model, on_call, places=False):
            added = _added(replay, self.checkpoint, self.values)
        lines = {name: writers.get(next(iter(storages(tensor)))) for name, tensor in _state(replay)}
        return {name: (Movement.of(of, self.added[name]), lines[name]) for name, of in added.items()}


def find_stuck_state(examined: ExaminedTraining) -> Iterator[StuckState]:
    """Find half-precision state that a step moves in float32 and not in its own dtype, one finding per line that writes
    it, if a change lets it move. A few steps do not show it: state that begins at zero grows until what is added is
    below half its spacing. So its later value is estimated from steps in float32."""
    replay = at_full_rate(examined.replay())
    replay.step()
    dtypes = {name: tensor.dtype for name, tensor in _state(replay) if tensor.dtype in HALF}
    if not dtypes:
        return
    try:
        late = _late_state(examined, dtypes)
        moved = late.movements(replay)
    except Exception:  # noqa: BLE001  the code may refuse values that it has not come to yet
        return
    by_line: dict[object, list[str]] = defaultdict(list)
    for name, (movement, line) in moved.items():
        if movement.is_lost:
            by_line[line or name].append(name)
    for names in by_line.values():

        def moves(changed: Replay, names: Sequence[str] = names) -> bool:
            at_full_rate(changed).step()
            after = late.movements(changed)
            return all(after[name][0].moved > _MOSTLY for name in names)

        (movement, line), owners = moved[names[0]], {name.rpartition(".")[0] for name in names}
        modules = [name for name, _ in replay.model.named_modules() if name in owners]
        if (change := smallest_change(examined, line, [modules], moves)) is not None:
            facts: dict[str, Any] = {"unchanged_pct": 100 * movement.unchanged, "moved_pct": 100 * movement.moved}
            facts |= {"dtype": dtype_name(dtypes[names[0]]), "change": change, "proof": TriedChange(mends=True)}
            yield StuckState(modules=modules, place=line, state=names, **facts)


def _state(replay: Replay) -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors that the training holds, but for trained weights and the state of known optimizers."""
    trained = {id(parameter) for parameter in replay.model.parameters() if parameter.requires_grad}
    optimizers = [one for one in replay.trainer.optimizers.values() if type(one).__module__.split(".")[0] not in _KNOWN]
    for _, name, tensor in held_tensors(replay.model, optimizers, replay.trainer.task):
        if id(tensor) not in trained and tensor.is_floating_point() and tensor.layout is torch.strided:
            yield name, tensor


def _late_state(examined: ExaminedTraining, dtypes: Mapping[str, torch.dtype]) -> _LateState:
    """Let state go on from a step as a geometric series: with the same batch, twice in a row, `value -> kept * value +
    given` adds `kept` times as much the second time."""
    replay = at_full_rate(examined.baseline())
    for _ in examined.own_steps.steps:
        replay.step()
    num_steps = max(replay.trainer.num_steps - replay.trainer.step, _HORIZON)
    checkpoint, start = replay.state(), _values(replay, dtypes)
    first = _added(replay, checkpoint, start)
    second = _added(replay, checkpoint, {name: start[name] + added for name, added in first.items()})
    late: Values = {}
    expected: Values = {}
    for name in second:
        value, added, dtype = start[name], first[name], dtypes[name]
        kept = min(float((second[name] * added).sum() / added.square().sum()), _MOST_KEPT)
        if not kept > _LEAST_KEPT:  # NaN: nothing is added
            continue
        num = min(math.log(0.5) / math.log(kept), num_steps)
        later = (value + added * (1 - kept**num) / (1 - kept)).to(dtype).double()
        is_far = (added != 0) & ((later - value).abs() > torch.finfo(dtype).eps * later.abs())
        if 2 * int(is_far.sum()) >= int((added != 0).sum()):
            late[name] = later
            expected[name] = torch.where(is_far, added + (kept - 1) * (later - value), math.nan)
    exact = _added(replay, checkpoint, late)
    for name, added in exact.items():
        is_expected = (added - expected[name]).abs() <= expected[name].abs() / 2
        exact[name] = torch.where(is_expected, added, math.nan)
    return _LateState(checkpoint, {name: late[name] for name in exact}, exact)


def _added(replay: Replay, checkpoint: Checkpoint, values: Values) -> Values:
    """What the step after a checkpoint adds to state that has other values."""
    replay.restore(checkpoint)
    with torch.no_grad():
        for name, tensor in _state(replay):
            if name in values and values[name].shape == tensor.shape:
                tensor.copy_(values[name])
    replay.step()
    return {n: now - values[n] for n, now in _values(replay, values).items() if now.shape == values[n].shape}


def _values(replay: Replay, names: Container[str]) -> Values:
    return {name: t.detach().to("cpu", torch.float64, copy=True) for name, t in _state(replay) if name in names}
