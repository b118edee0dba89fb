"""The instruments of a training: one object that the trainer wraps around its steps and asks for figures."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ampsweep.config.schema import PrecisionConfig
from ampsweep.metrics import MEASURED
from ampsweep.monitors.compilation import CompilationWatch
from ampsweep.monitors.contamination import Evidence, UseDuringRun
from ampsweep.monitors.device_peaks import Efficiency
from ampsweep.monitors.device_sampler import DeviceSampler, EnergyMeter, read_energy_j
from ampsweep.monitors.environment import effective_flags
from ampsweep.monitors.memory import MemoryMonitor
from ampsweep.monitors.scaler import ScaleMonitor
from ampsweep.monitors.step_clock import StepClock
from ampsweep.observe.feeding import resident
from ampsweep.observe.profiled_step import StepProfile, profile_step
from ampsweep.observe.step import Trace, TracedStep, trace_step
from ampsweep.parallel.communication_time import Waits
from ampsweep.precision.arithmetic import flops_by_arithmetic
from ampsweep.records.numerics import RunNumerics
from ampsweep.records.reading import converted
from ampsweep.records.sections import Compilation, Contamination, MemoryUse, ModeProof, as_json
from ampsweep.text import one_line

if TYPE_CHECKING:
    from ampsweep.monitors.numerics import NumericsWatch

_OF_EMULATION: Final = ("perf/step_ms", "memory/peak_allocated_gib", "device/utilization_pct")
"""Absent figures of an emulated mode."""
_UNKNOWN_IN_OTHER_LOOPS: Final = ("perf/data_wait_ms", "instrumentation/overhead_pct")
_MAX_PROFILES: Final = 5  # tries to profile a step that compiles nothing and applies an optimizer step


class MeasuredPrecision(Protocol):
    """What the instruments ask of the precision of a training: `Precision`, or one that a training chose by itself."""

    @property
    def device(self) -> torch.device: ...
    @property
    def config(self) -> PrecisionConfig: ...
    @property
    def emulated(self) -> str | None: ...
    @property
    def region(self) -> Callable[[], str | None] | None: ...
    def scale(self) -> Tensor | float | None: ...
    def prove_step(self, work: TracedStep) -> ModeProof: ...


class Instruments:
    """Clock, memory, device sampler, scale counters and the traced step of one training.

    Args:
        samples_per_step: of all ranks; None if unknown, and then no figure is per sample.
        data: delivers the batches; tensors that it keeps on an accelerator count as memory of the training.
        warmup_steps: steps of this process that are in no figure except the run's own memory peak.
        warmup_seconds: least duration of warm-up in ordinary steps; for memory, `warmup_steps` alone decides.
        is_fused: the optimizers are fused, so that with a scaler only the device knows the number of applied steps.
        num_optimizer_steps: optimizer steps in a training step.
        is_compiled: the steps run compiled; the examined step is then profiled, else traced.
        waits: measures the time a step waits for other ranks; None with a single rank, or if it cannot be measured.
        owns_loop: False for a loop that others wrote: waits for data within its steps are unknown, and what it does
            between them is neither the suite's nor told apart.
        watch: records magnitudes in steps of its choice; None to record none.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        precision: MeasuredPrecision,
        data: object,
        *,
        warmup_steps: int,
        warmup_seconds: float = 0.0,
        samples_per_step: int | None,
        tokens_per_step: int | None,
        is_fused: bool,
        num_optimizer_steps: int = 1,
        is_compiled: bool = False,
        waits: Waits | None = None,
        owns_loop: bool = True,
        watch: "NumericsWatch | None" = None,
    ) -> None:
        self._model, self._optimizers, self._precision, self._data = model, optimizers, precision, data
        device, scaler = precision.device, precision.config
        self._warmup_steps, self._warmup_seconds = warmup_steps, warmup_seconds
        self.num_steps_seen = self.steps_before = 0  # of this process, and of earlier processes of the training
        self._warmup_began_s = 0.0
        self._num_left_out: int | None = None  # steps that warm-up took; None while it lasts
        self._clock = StepClock(device, samples_per_step, tokens_per_step)
        self.now, self.own = self._clock.now, self._clock.own
        """`own(began)` marks calls since `began = now()` that a bare loop would not make."""
        self._waits, self.watch = waits, watch
        self._timed_step = Enclosing(
            self._clock.begin if waits is None else self._begin_among_ranks, self._end_timed_step
        )
        self._memory = MemoryMonitor(device)
        self._growth = self._memory.growth()
        self._sampler, self._others = DeviceSampler(device), UseDuringRun(device)
        self._compilations = CompilationWatch()
        self._num_profiles_left = _MAX_PROFILES if is_compiled else 0
        self._is_compiled = is_compiled
        self._energy = EnergyMeter(partial(read_energy_j, device), samples_per_step)
        self._scale: ScaleMonitor | None = None
        self.counts_on_device = scaler.grad_scaler and is_fused
        if scaler.grad_scaler:
            counts_on = device if is_fused else None
            self._scale = ScaleMonitor(scaler.init_scale, scaler.growth_interval, device=counts_on)
        self._applied_on_host = self._applied_before = 0
        self._num_calls, self._calls_per_step = 0, num_optimizer_steps
        """Optimizer calls in this step, and in an applied step."""
        self._hooks: list[RemovableHandle] = []
        if scaler.grad_scaler and not is_fused:  # to skip a step, the scaler does not call the optimizer
            self._hooks = [optimizer.register_step_post_hook(self._on_optimizer_step) for optimizer in optimizers]
        self.data_wait_s = 0.0  # seconds spent waiting for the data of the current step; the trainer adds to it
        self._emulated, self._owns_loop = precision.emulated, owns_loop
        self._not_traced: str | None = None  # why no step can be traced, if so
        self._traced: TracedStep | None = None
        self.examines = True  # a step is to be examined
        self._lacks_state = False  # at the end of warm-up each step had been skipped: one after it is examined, too
        self._use, self._unreported = MemoryUse(), False  # the memory of the traced step; whether no row has it yet
        self._efficiency: Efficiency | None = None
        self._flags: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._sampler.__enter__()
        self._compilations.begin()
        self._warmup_began_s = perf_counter()
        if self._warmup_steps == 0:
            self._memory.after_warmup()
            if self._warmup_seconds == 0:
                self._end_warmup()
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._others.end()
        self._compilations.end()
        self._sampler.__exit__(*error)

    def step(self) -> AbstractContextManager[None]:
        """Time a training step, or examine it if that is due."""
        self.data_wait_s = 0.0
        can_examine = self._not_traced is None and (not self._is_compiled or self._num_profiles_left)
        if self.examines and can_examine and (self._traced is not None or self._trace_is_due()):
            return self._traced_step()
        if self.watch is not None and self.watch.schedule.is_due(self.num_steps + 1):
            return self._watched_step(self.watch)
        return self._timed_step

    def examine_again(self) -> None:
        """Examine the next step, too: the work of a step has changed. Memory is that of the step with the most."""
        self.examines = True

    def other_step(self, kind: Literal["timed", "untimed"]) -> AbstractContextManager[None]:
        """A step that cannot be examined, or not even timed, because it does other work, too."""
        return self._timed_step if kind == "timed" else self._untimed_step()

    @contextmanager
    def _untimed_step(self) -> Iterator[None]:
        with self.aside():
            yield from self._untimed()
            self._end_untimed()

    @property
    def num_steps(self) -> int:
        """Steps of the training so far, including those of earlier processes."""
        return self.steps_before + self.num_steps_seen

    def _begin_among_ranks(self) -> None:
        assert self._waits is not None
        self._clock.begin()
        self._waits.begin_step(self._clock.now)

    def _end_timed_step(self, error: BaseException | None) -> None:
        if error is not None:
            return
        self._clock.end(self.data_wait_s, None if self._waits is None else self._waits.end_step())
        if self._compilations.compiled:
            self._clock.mark_warmup()
            self._compilations.settle(self.num_steps_seen + 1, is_warmup=self._num_left_out is None)
        if self._growth is not None and (num_slowed := self._growth.step_ended()):
            self._clock.mark_warmup(num_slowed)
        self.num_steps_seen += 1
        if self._num_left_out is None:
            self._update_warmup(perf_counter())
        if self._lacks_state and not self.examines and self._has_stepped():
            self._lacks_state = False
            self.examine_again()

    @contextmanager
    def _traced_step(self) -> Iterator[None]:
        """Trace the step; a compiled step is profiled, since it could be traced only as an eager step."""
        with self.aside():
            # A profiler measures compiled steps already, and has words of its own on the stderr of others.
            by_profiler = self._owns_loop and not self._is_compiled
            with self._memory.one_step(by_profiler=by_profiler), self._examine() as examined:
                yield from self._untimed()
            self.examines = False  # now: a step that turned out to be none is left before
            self._num_profiles_left -= self._is_compiled
            if isinstance(examined, Trace) and examined.failure is not None:
                self._not_traced = one_line(examined.failure)
            elif examined.result is None:
                self.examines = True
            else:
                self._after_trace(examined.result)
            self._warmup_began_s = perf_counter()  # the device had little to do until now
            self._end_untimed()

    @contextmanager
    def _watched_step(self, watch: "NumericsWatch") -> Iterator[None]:
        schedule, has_queue = watch.schedule, self._precision.device.type != "cpu"
        mean_s = schedule.steps_s / self.num_steps_seen if self.num_steps_seen else None
        with self._paused():
            began_s = perf_counter()
            with watch.look():
                yield from self._untimed()
            self.wait()
            watch.read(self.num_steps + 1)
            # The host times its own calls; the device may need longer to execute them.
            more_s = perf_counter() - began_s - mean_s if has_queue and mean_s is not None else 0.0
            schedule.observed(max(watch.own_time.seconds, more_s))
            self._end_untimed()

    def _untimed(self) -> Iterator[None]:
        self._clock.begin()
        yield
        self._clock.end(waits=None if self._waits is None else ())

    def _end_untimed(self) -> None:
        if self._compilations.compiled:
            self._compilations.settle(self.num_steps_seen + 1, is_warmup=self._num_left_out is None)
        self._clock.mark_traced()
        self.num_steps_seen += 1
        self._update_warmup(perf_counter(), ends_it=False)

    def _examine(self) -> AbstractContextManager[Trace | StepProfile]:
        device, seen = self._precision.device, self._compilations
        data = [] if device.type == "cpu" else resident(self._data)
        if self._is_compiled:
            return profile_step(self._model, *self._optimizers, device=device, data=data, is_void=lambda: seen.compiled)
        region, is_tolerant = self._precision.region, not self._owns_loop
        return trace_step(self._model, *self._optimizers, data=data, region=region, is_tolerant=is_tolerant)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude work between steps (evaluation, a checkpoint) from the figures; leaving waits for the device."""
        began_s = perf_counter()
        with self._paused():
            yield
        if self.watch is not None:
            self.watch.schedule.aside_s += perf_counter() - began_s

    @contextmanager
    def _paused(self) -> Iterator[None]:
        self.wait()
        self._look_for_growth()
        self._energy.end(self.num_steps_seen)
        self._sampler.pause()
        self._others.pause()
        yield
        self._compilations.settle(None)  # an evaluation's compilations and allocations took no time of a step
        if self._growth is not None:
            self._growth.begin()
        if self._num_left_out is not None:
            self._energy.begin(self.num_steps_seen)
            self._sampler.resume()
            self._others.resume()
        self._clock.restart()

    def count_update(self, *, ends_step: bool = True) -> None:
        """Count an update of the scale; a step is applied if every optimizer takes its step."""
        if self._scale is None:
            self._applied_on_host += ends_step
            return
        sampling = self._clock.sampling
        is_sampled = self._owns_loop and self.num_steps_seen % sampling == sampling // 2
        began = self.now() if is_sampled else None
        scale = self._precision.scale()
        assert scale is not None
        self._scale.observe(scale, ends_step=ends_step)
        if ends_step:
            self._applied_on_host += self._num_calls == self._calls_per_step
            self._num_calls = 0
        if began is not None:
            self.own(began, sampling)

    def applied_steps(self) -> int | Tensor:
        """Applied steps so far: an int if the host knows the number, else a 0-dim int64 tensor on the device."""
        if self.counts_on_device:
            assert self._scale is not None
            return self._scale.applied_on_device()
        return self._applied_on_host

    def num_last_skipped(self) -> int:
        """Consecutive skipped steps up to now; waits for the device."""
        return 0 if self._scale is None else self._scale.num_last_skipped()

    def wait(self) -> None:
        self._clock.wait()

    def end_row(self) -> None:
        """Assign the steps since the last row to a new row; `rows` returns its metrics."""
        self._clock.cut()
        if self._scale is not None:
            self._scale.end_row()

    def rows(self) -> list[dict[str, float]]:
        """Return the metrics of each row ended since the last call; on an accelerator this waits for their steps."""
        self._look_for_growth()
        windows = [self._with_efficiency(window) for window in self._clock.windows()]
        shared = self._clock.overhead() | self._sampler.latest() | self._memory.row()
        rows = [window | shared for window in windows]
        if rows and self._unreported:
            rows[-1] |= self._memory.row(self._use)
            self._unreported = False
        if rows and self.watch is not None:
            rows[-1] |= self.watch.figures()
        rows = [self._of_mode(row) for row in rows]
        if self._scale is not None:
            rows = [scale | row for scale, row in zip(self._scale.rows(), rows, strict=True)]
        return rows

    def summary(self) -> dict[str, float]:
        self._look_for_growth()
        times = self._with_efficiency(self._clock.summary()) | self._clock.overhead() | self._energy.summary()
        cost_pct = None if self.watch is None else self.watch.schedule.cost_pct
        watched = {} if cost_pct is None else {"instrumentation/watch_pct": cost_pct}
        return self._of_mode(times | self._sampler.summary() | self._memory.summary(self._use)) | watched

    @property
    def num_warmup_steps(self) -> int:
        return self.num_steps_seen if self._num_left_out is None else self._num_left_out

    def absent(self) -> dict[str, str]:
        """Why `summary` lacks metrics that the device supports; complete once the instruments are closed."""
        if self._emulated is not None:
            return dict.fromkeys(_OF_EMULATION, "the mode is emulated on this device")
        untraced = {}
        if self._not_traced is not None and self._precision.device.type == "cpu":
            untraced = {"memory/peak_allocated_gib": f"no step could be traced: {self._not_traced}"}
        if not self.num_steps_seen or self._clock.summary():
            return untraced
        if self._num_left_out is not None and self.num_steps_seen > self._num_left_out:
            why = "each step after warm-up was traced, compiled something or made the allocator grow"
        else:
            seconds = f" and {self._warmup_seconds:g} s" if self._warmup_seconds else ""
            why = f"the training ended before its warm-up ({self._warmup_steps} steps{seconds}) was over"
        return {"perf/step_ms": why} | untraced

    def memory(self) -> MemoryUse:
        return self._use

    def observed(self) -> dict[str, Any]:
        watched = {} if self.watch is None else {"numerics": as_json(self.watch.numerics())}
        use = {"memory": as_json(self._use), "peaks": self._memory.peaks()}
        return use | watched

    def go_on(self, observed: dict[str, Any], step: int, *, is_same_run: bool) -> None:
        """Continue after `step` from a checkpoint's `observed` state; its memory counts only within the same run."""
        self.steps_before = step
        if observed and is_same_run:
            self._use = converted(observed["memory"], MemoryUse)
            self._memory.go_on(observed["peaks"])
        if self.watch is not None and "numerics" in observed:
            self.watch.load(converted(observed["numerics"], RunNumerics))

    def compilation(self) -> Compilation:
        """The compilations of this process; complete once the instruments are closed."""
        return self._compilations.found()

    def proof(self) -> ModeProof:
        """Return the traced step's operations by dtype, the flags in effect and the device peak they refer to."""
        if self._traced is None or self._efficiency is None:
            return ModeProof()
        traced = self._traced
        of_modules = self._precision.prove_step(traced)
        if traced.is_compiled:  # compiled code has no modules to attribute operations to
            of_modules = ModeProof(float8=of_modules.float8)
        else:
            of_modules |= ModeProof(num_repeated_operators=traced.num_repeated)
        return of_modules | ModeProof(
            num_operators=traced.num_operators,
            flops=traced.flops,
            recomputed_flops=traced.recomputed_flops,
            outputs=traced.outputs or None,
            traced="compiled" if traced.is_compiled else "eager",
            flags=self._flags,
            peak=self._efficiency.proof(),
        )

    def contamination(self, busy_before: str | None) -> Contamination:
        """Judge whether anything else changed the figures after warm-up; `busy_before`: who used the device before."""
        return self._others.verdict(
            Evidence(
                busy_before=busy_before,
                data_wait_share=self._clock.idle_share(between_steps=not self._owns_loop),
                waits_for_host=self._clock.waits_for_host,
                throttled_pct=self._sampler.summary().get("device/throttled_pct"),
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the scale counters for a checkpoint; waits for the device."""
        return {} if self._scale is None else self._scale.state_dict()

    def load_state_dict(self, state: dict[str, Any], *, applied_steps: int) -> None:
        """Continue counting from a checkpoint's state; without a scaler every step counts as applied."""
        self._applied_on_host = self._applied_before = applied_steps
        if self._scale is not None:
            fresh = {"num_observed": applied_steps, "skipped_steps": 0, "growth_tracker": 0}
            scale = self._precision.scale()
            assert scale is not None
            self._scale.load_state_dict(state or fresh, scale)

    def _trace_is_due(self) -> bool:
        """Return True for the first step with optimizer state, but the last of warm-up: a trace cools the device."""
        if self.num_steps_seen == 0:
            return False
        self._lacks_state = not self._has_stepped() and not all(optimizer.state for optimizer in self._optimizers)
        return not self._lacks_state or self.num_steps_seen + 2 >= self._warmup_steps

    def _has_stepped(self) -> bool:
        # A fused optimizer creates its state in a skipped step, too; SGD without momentum never has any.
        return self.counts_on_device or self._applied_on_host > self._applied_before

    def _update_warmup(self, now_s: float, *, ends_it: bool = True) -> None:
        """End warm-up after a step if it has lasted long enough; an untimed step does not end it."""
        if self.num_steps_seen == self._warmup_steps:
            self._memory.after_warmup()
        has_lasted = self.num_steps_seen >= self._warmup_steps and now_s - self._warmup_began_s >= self._warmup_seconds
        if has_lasted and self._num_left_out is None and ends_it:
            self._end_warmup()

    def _after_trace(self, traced: TracedStep) -> None:
        if traced.peak_bytes > (self._use.peak_bytes or -1):
            self._use, self._unreported = self._memory.of_step(traced), True
            self._use.step = None if self._growth else self.num_steps + 1
        self._traced = traced
        self._flags = effective_flags(self._precision.device)
        flops = flops_by_arithmetic(self._precision.config, traced.model_flops, traced.convolution_flops)
        self._efficiency = Efficiency(self._precision.device, flops)

    def _with_efficiency(self, times: dict[str, float]) -> dict[str, float]:
        if self._efficiency is None or not times:
            return times
        return times | self._efficiency.figures(times["perf/step_ms"])

    def _of_mode(self, figures: dict[str, float]) -> dict[str, float]:
        if self._emulated is None and self._owns_loop:
            return figures
        left_out = MEASURED if self._emulated is not None else _UNKNOWN_IN_OTHER_LOOPS
        return {key: value for key, value in figures.items() if not key.startswith(left_out)}

    def _look_for_growth(self) -> None:
        if self._growth is not None:
            self._clock.mark_warmup(self._growth.look())

    def _end_warmup(self) -> None:
        self.wait()
        self._num_left_out = self.num_steps_seen
        self._clock.end_warmup()
        self._energy.begin(self.num_steps_seen)
        self._compilations.begin()
        if self._growth is not None:
            self._growth.begin()
        self._sampler.resume()
        self._others.after_warmup()
        self._clock.restart()

    def _on_optimizer_step(self, *_: Any) -> None:
        self._num_calls += 1


class Enclosing(AbstractContextManager[None]):
    """Calls `begin`, and `end` with the error if any. Created once: a generator's context would cost each step
    microseconds."""

    def __init__(self, begin: Callable[[], None], end: Callable[[BaseException | None], None]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._end(error)
