"""The recorder around a training that is not the suite's: a loop of one's own, a script, a framework's trainer."""

import atexit
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Concatenate, Final, Literal, ParamSpec, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampsweep.config.claims import claimed_precision
from ampsweep.integrations.observed_precision import ObservedPrecision
from ampsweep.integrations.own_record import (
    add_proved,
    is_compiled,
    make_directory,
    new_record,
    rank_and_size,
    script_name,
)
from ampsweep.integrations.script.hooks import scalar_of
from ampsweep.integrations.script.session import Session, error_of_process, stand_aside
from ampsweep.integrations.summary_lines import say_ended
from ampsweep.metrics import STEP
from ampsweep.monitors.contamination import UseBeforeRun
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.step import parameters_of
from ampsweep.precision.arithmetic import exact_or_rounded, kept_bits
from ampsweep.recorder.instruments import Enclosing, Instruments
from ampsweep.recorder.rank_figures import exchange_rank_files
from ampsweep.recorder.recorder import Recorder
from ampsweep.records import HISTORY_NAME, history_digest, history_line, read_history, write_atomically
from ampsweep.records.run_record import Source
from ampsweep.records.sections import ModeProof
from ampsweep.text import folder_name, one_line
from ampsweep.tracking.tracker import Tracker

WARMUP_SECONDS: Final = 2.0  # on an accelerator, whose clocks rise under load
NAMES: Final = {"loss": "train/loss", "val_loss": "val/loss", "lr": "train/lr", "grad_norm": "train/grad_norm"}
"""Metric keys of the suite by the names that loops give them."""
_CPU: Final = torch.device("cpu")

StepKind = Literal["any", "timed", "untimed"]
"""`any`: timed, or traced if that is due; `untimed`: with other work in it, such as an evaluation."""

_P = ParamSpec("_P")


class _NoStepError(Exception):
    """Ends a step that was begun and that is none."""


def _never_in_the_way(
    method: Callable[Concatenate["OwnTraining", _P], None],
) -> Callable[Concatenate["OwnTraining", _P], None]:
    """Let a training go on whatever fails in its recording, which ends then with the reason in the record."""

    @functools.wraps(method)
    def guarded(self: "OwnTraining", /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if self.is_recording:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the training is worth more than its record
                self.give_up(f"{method.__name__}: {one_line(error)}")

    return guarded


class OwnTraining:
    """Records a training that is not the suite's: `run.json` and `history.jsonl`, as runs of the suite have them.

    >>> with ampsweep.record(model=model, optimizer=optimizer, arm="bf16", seed=0) as run:  # doctest: +SKIP
    ...     for x, y in batches:
    ...         with run.step():
    ...             with torch.autocast("cuda", torch.bfloat16):
    ...                 loss = loss_of(model(x), y)
    ...             loss.backward()
    ...             optimizer.step()
    ...             optimizer.zero_grad()
    ...         run.log(loss=loss)
    ...     run.log(val_loss=evaluate(model))

    Model, optimizers and scaler are only read. If the recording fails, the training goes on, and the record says why.
    In a command under `ampsweep record` or `compare`, this is its recording, and what was said there comes first.

    Args:
        model: as it is trained, in any wrapper.
        optimizer: one, or all that a step calls.
        scaler: the training's GradScaler, if any; a step ends after its `update`.
        arm: what runs are compared by, such as `bf16`. None: the mode that a traced step proves.
        seed: runs of two arms with the same seed pair. None: torch's initial seed.
        config: the training's settings. Those that differ between the arms are named in a comparison.
        experiment: its folder of `outputs`. None: the script's name.
        directory: the folder for all runs to compare, in place of `outputs/EXPERIMENT`.
        claimed: words for the precision asked for, such as `bf16-mixed`, which the proof then has to confirm. None: the
            arm's name.
        samples_per_step, tokens_per_step: of all micro-batches and ranks of a step; for throughput.
        log_every: steps between two rows of values that are logged with the loss. All others are logged at once.
        warmup_steps, warmup_seconds: left out of every figure, as in `conf/trainer`. None: 2 s on an accelerator.
        metric, goal: the metric that decides whether arms learn the same, and whether to minimize or maximize it.
        data: holds tensors on the device that feed the training, if any; they count as `data`.

    Of several ranks, as torch.distributed or the environment have them, rank 0 leaves the record, with the figures of
    all that can write into the folder.

    Raises:
        ValueError: the model has no parameters, or a setting is impossible.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        scaler: torch.amp.GradScaler | None = None,
        arm: str | None = None,
        seed: int | None = None,
        config: object = None,
        experiment: str | None = None,
        directory: Path | str | None = None,
        source: Source = "loop",
        claimed: str | None = None,
        samples_per_step: int | None = None,
        tokens_per_step: int | None = None,
        log_every: int = 10,
        warmup_steps: int = 10,
        warmup_seconds: float | None = None,
        metric: str | None = None,
        goal: str | None = None,
        data: object = None,
    ) -> None:
        check_options(log_every, warmup_steps, goal)
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else [*optimizer]
        parameters = [*model.parameters()] or [p for own in optimizers for p in parameters_of(own)]
        if not parameters:
            raise ValueError(f"{type(model).__name__} has no parameters: there is nothing to record")
        stand_aside(source)
        self._session = session = Session.of_this_process(source)
        if session is not None:
            source, seed = "script", seed if session.seed is None else session.seed
            arm, claimed, experiment = session.arm or arm, session.claimed or claimed, session.experiment or experiment
            metric, goal = session.metric or metric, session.goal or goal
        self._model, self._optimizers, self._log_every = model, optimizers, log_every
        self.device, self.rank = parameters[0].device, rank_and_size()[0]
        self._trained_in = _first_dtype(model)
        self._words = words = claimed or arm
        self._precision = ObservedPrecision(self.device, scaler, None if words is None else claimed_precision(words))
        self.record = new_record(
            model,
            optimizers,
            self._precision,
            source=source,
            experiment=experiment or script_name(),
            arm=arm,
            seed=torch.initial_seed() if seed is None else seed,
            config=config,
        )
        self.record.config["report"] = {"metric": metric, "goal": goal}
        root = Path("outputs") if session is None else Path(session.root)
        if session is None or not session.is_into:
            root = root / folder_name(self.record.identity.experiment) if directory is None else Path(directory)
        self._root = root.expanduser().resolve()
        self.directory = make_directory(self._root, self.record, arm) if self.rank == 0 else self._root
        self._use_before = UseBeforeRun(self.device)
        if warmup_seconds is None:
            warmup_seconds = 0.0 if self.device.type == "cpu" else WARMUP_SECONDS
        self._instruments = Instruments(
            model,
            optimizers,
            self._precision,
            data,
            warmup_steps=warmup_steps,
            warmup_seconds=warmup_seconds,
            samples_per_step=samples_per_step,
            tokens_per_step=tokens_per_step,
            is_fused=any(getattr(own, "_step_supports_amp_scaling", False) for own in optimizers),
            num_optimizer_steps=len(optimizers),
            is_compiled=is_compiled(model),
            owns_loop=False,
        )
        self._recorder = Recorder(
            self._instruments,
            self._precision,
            record=self.record,
            tracker=Tracker() if self.rank == 0 else None,
            directory=self.directory if self.rank == 0 else None,
            num_losses=32,
            ends_at_divergence=False,
        )
        self.is_recording, self._is_written, self._has_ended = True, False, False
        self.lacking: dict[str, str] = {}
        """Why the record lacks something, such as a metric, if it does in the end."""
        self._sampled: dict[str, float | Tensor] = {}  # the latest values that were logged with a loss, and their step
        self._sampled_at = self._written_at = 0
        self._row: dict[str, float | Tensor] = {}  # values to log in any case
        self._step: AbstractContextManager[None] | None = None
        self._around_step = Enclosing(self.begin_step, self.end_step)

    # --- a recording from beginning to end

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.finish(error)

    @_never_in_the_way
    def start(self) -> None:
        """Begin the record; `finish` ends it, at the latest when Python exits."""
        if self.rank == 0:
            self.directory.mkdir(parents=True, exist_ok=True)
        self._tell()
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            bits = kept_bits(self.device, self._model)  # under the training's own switches
        self.record.proof |= ModeProof(fp32_bits=bits, fp32_arithmetic={**exact_or_rounded(bits)})
        self._busy = self._use_before.sentence()
        self._recorder.begin()
        self._instruments.__enter__()
        atexit.register(self._at_exit)

    @_never_in_the_way
    def finish(self, error: BaseException | None = None) -> None:
        """End the record: completed, or with the error that ended the training. A step that has begun is none."""
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        self._leave_step(error or _NoStepError())
        self._write_row(is_last=True)
        self._recorder.leave(error, self._busy)
        self.record.absent |= {key: why for key, why in self.lacking.items() if key not in self.record.summary}
        self.record.identity.steps = self.num_steps
        self._add_proved()
        if self.record.identity.world_size > 1:
            exchange_rank_files(self.record, self._root, self.rank, self._precision.config, waits=error is None)
        self._close()
        self._has_ended = self.rank == 0

    def give_up(self, reason: str) -> None:
        """End the recording, not the training; the record says why from there on there is nothing."""
        with suppress(Exception):  # the recording has failed already
            self._leave_step(_NoStepError())
            self._instruments.__exit__()
        self.record.status, self.record.error = "interrupted", f"the recording ended: {reason}"
        with suppress(Exception):
            self._tell(reason)
            self._close()
        self.is_recording = False

    def _tell(self, reason: str | None = None) -> None:
        if self._session is not None:
            self._session.tell(self.directory if self.rank == 0 else None, reason)

    def _close(self) -> None:
        self._recorder.close()
        if self.rank == 0 and self._session is None:  # else the launcher says it
            say_ended(self.record, self.directory)
        self.is_recording = False
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        self.finish(error_of_process() or KeyboardInterrupt("the process ended"))

    def _add_proved(self) -> None:
        add_proved(self.record, self._model, self._optimizers, self._precision, self._words)

    # --- a step

    def step(self) -> AbstractContextManager[None]:
        """One optimizer step with all its micro-batches, from the first forward pass to the scaler's update."""
        self.write_row()
        return self._around_step

    @_never_in_the_way
    def begin_step(self, kind: StepKind = "any") -> None:
        """Begin a step, for callers that cannot use `step`; one that was begun and not ended is none."""
        if self._step is not None:
            self._leave_step(_NoStepError())
        self._step = self._recorder.step() if kind == "any" else self._instruments.other_step(kind)
        self._step.__enter__()

    @_never_in_the_way
    def end_step(self, error: BaseException | None = None, *, updates_scale: bool = True) -> None:
        """End the step, which is none if it ends with an error; `updates_scale`: its update is yet to be counted."""
        if error is None and updates_scale:
            self.count_update()
        self._leave_step(error)
        if not self._is_written and self._instruments.memory().peak is not None:
            self._is_written = True  # write the proof, which the record of a killed process would lack
            self.record.memory = self._instruments.memory()
            self.record.proof |= self._instruments.proof()
            self._add_proved()
            self._recorder.write()

    @_never_in_the_way
    def count_update(self, *, ends_step: bool = True) -> None:
        """Count an update of the scale, or without scaler an optimizer step; a step may have several."""
        self._recorder.count_update(ends_step=ends_step)

    def _leave_step(self, error: BaseException | None) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None if error is None else type(error), error, None)

    @property
    def is_traced(self) -> bool:
        """True if no other step is to be traced."""
        return not self._instruments.examines

    @property
    def num_steps(self) -> int:
        return self._instruments.num_steps

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude an evaluation or a checkpoint from the figures of time; between steps it is excluded anyhow."""
        if not self.is_recording or self._step is not None:
            yield
            return
        with self._recorder.aside("eval"):
            yield

    # --- rows

    def log(self, values: Mapping[str, float | Tensor] | None = None, /, **named: float | Tensor) -> None:
        """Log values of the current step, or after it of the latest; nothing waits for the device.

        What is logged together with `loss` is a row every `log_every` steps, and at the end; everything else is one at
        once. Names: `loss`, `val_loss`, `lr`, `grad_norm` for the suite's metrics; others as they are.
        """
        given = {
            NAMES.get(key, key): value for key, value in (named if values is None else {**values, **named}).items()
        }
        for key, value in given.items():
            if not isinstance(value, int | float) and not (isinstance(value, Tensor) and value.numel() == 1):
                raise ValueError(f"{key}: {type(value).__name__} is no number")
        if self._has_ended:
            self._add_to_ended({key: float(value) for key, value in given.items()})
        else:
            self._keep(given)

    @_never_in_the_way
    def _keep(self, given: Mapping[str, float | Tensor]) -> None:
        kept = {key: _detached(value, self.device) for key, value in given.items()}
        if "train/loss" in kept:
            self._sampled, self._sampled_at = kept, self.num_steps + (self._step is not None)
        else:
            self._row |= kept

    def sample_loss(self, loss: float | Tensor) -> None:
        """Log nothing but the loss, in less time; for callers that tolerate an error."""
        self._sampled = {"train/loss": loss if isinstance(loss, float) else _detached(loss, self.device)}
        self._sampled_at = self.num_steps + (self._step is not None)

    @_never_in_the_way
    def write_row(self) -> None:
        """Write the row of the latest step if it is due: whatever is logged from now on is of the next one."""
        self._write_row()

    def _write_row(self, *, is_last: bool = False) -> None:
        step = self.num_steps
        sampled = self._sampled if self._sampled_at == step else {}
        is_due = sampled and (is_last or step % self._log_every == 0)
        if step > self._written_at and (is_due or self._row):  # else what was logged since belongs to the next step
            self._written_at, row = step, {**sampled, **self._row}
            self._recorder.log(row, step)
            self._row, self._sampled = {}, {}

    def _add_to_ended(self, values: dict[str, float]) -> None:
        """Add values to the row of the last step, as of an evaluation after the training; those that it has stay."""
        rows, step = read_history(self.directory), self.num_steps
        row = rows.pop() if rows and rows[-1][STEP] == step else {STEP: step}
        added = {key: value for key, value in values.items() if key not in row}
        with suppress(OSError):  # on a full disk the record stays as it is
            write_atomically(self.directory / HISTORY_NAME, "".join(map(history_line, [*rows, row | added])))
            self.record.summary |= {key: value for key, value in added.items() if math.isfinite(value)}
            self.record.history_digest = history_digest(self.directory)
            self.record.write(self.directory)

    def note_evaluation(self, model: nn.Module) -> None:
        """Note in an evaluation if the parameters have another dtype than in training, as with `bf16_full_eval`."""
        dtype = _first_dtype(model)
        if dtype is not None and dtype != self._trained_in:
            self.record.proof.eval_parameters = dtype_name(dtype)


def check_options(log_every: int = 10, warmup_steps: int = 10, goal: str | None = None, **_: object) -> None:
    """Raise ValueError for an impossible setting of `OwnTraining`."""
    if log_every < 1 or warmup_steps < 0:
        raise ValueError(f"log_every={log_every}, warmup_steps={warmup_steps}: at least 1 and 0")
    if goal not in (None, "minimize", "maximize"):
        raise ValueError(f"goal={goal!r}: minimize or maximize")


def _detached(value: float | Tensor, device: torch.device) -> float | Tensor:
    """A number, or a tensor without graph, 0-dim on the device."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.device in (device, _CPU):
        return scalar_of(value)
    return value.detach().reshape(()).to(device, non_blocking=True)


def _first_dtype(model: nn.Module) -> torch.dtype | None:
    return next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), None)
