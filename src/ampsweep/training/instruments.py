"""What watches a training: one object that the trainer tells of its steps and asks for figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from ampsweep.monitors.device import DeviceSampler
from ampsweep.monitors.memory import MemoryMonitor
from ampsweep.monitors.scaler import ScaleMonitor
from ampsweep.monitors.step_clock import StepClock
from ampsweep.monitors.trace import TracedStep, trace_step


class Instruments:
    """Clock, memory, device sampler, scale counters and the traced step of one training.

    Args:
        growth_interval: the scaler's, None without one.
        warmup_steps: steps of this process left out of every figure but the run's own peak.
        is_fused: the optimizer's kernels are fused; under a scaler only the device then knows which steps were applied.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        warmup_steps: int,
        samples_per_step: int,
        tokens_per_step: int | None,
        growth_interval: int | None,
        is_fused: bool,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._warmup_steps = warmup_steps
        self._clock = StepClock(device, warmup_steps, samples_per_step, tokens_per_step)
        self._memory = MemoryMonitor(device)
        self._sampler = DeviceSampler(device)
        self._scale = ScaleMonitor(device, growth_interval)
        self.counts_on_device = growth_interval is not None and is_fused
        self._applied_on_host = 0
        # Runs when the optimizer really steps. Under a fused optimizer that includes steps skipped on the device.
        optimizer.register_step_post_hook(self._on_optimizer_step)
        self._num_steps_seen = 0
        self._traced: TracedStep | None = None

    def __enter__(self) -> Self:
        """Begin sampling the device."""
        self._sampler.__enter__()
        if self._warmup_steps == 0:
            self._end_warmup()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampler.__exit__(kind, error, trace)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one optimizer step: times it, or traces it where that is due."""
        if self._trace_is_due():
            with trace_step(self._model, self._optimizer) as trace:
                self._clock.begin()
                yield
                self._clock.end()
            self._clock.mark_traced()
            self._traced = trace.result
        else:
            self._clock.begin()
            yield
            self._clock.end()
            if self._memory.grew():
                self._clock.mark_warmup()
        self._num_steps_seen += 1
        if self._num_steps_seen == self._warmup_steps:
            self._end_warmup()

    def observe_scale(self, before: Tensor | None, after: Tensor | None) -> None:
        """The scale a step was taken with and the one after its update: 0-dim tensors, None without scaler."""
        if before is not None and after is not None:
            self._scale.observe(before, after)

    def applied_steps(self) -> int | Tensor:
        """Steps applied so far: a number where the host knows it, else a 0-dim int64 tensor on the device."""
        if self.counts_on_device:
            return self._scale.applied_steps
        return self._applied_on_host

    def scale_values(self) -> dict[str, Tensor]:
        """The scaler's metrics, on the device; empty without scaler."""
        return self._scale.tensors()

    def row(self) -> dict[str, float]:
        """Host-side metrics for a history row; on an accelerator reading the clock waits for the steps it timed."""
        return self._clock.window() | self._sampler.latest()

    def summary(self) -> dict[str, float]:
        """The run's figures after warm-up."""
        return self._clock.summary() | self._memory.summary(self._traced) | self._sampler.summary()

    def memory(self) -> dict[str, Any]:
        """Bytes by category at the traced step's peak and at the end of its forward pass; empty before it."""
        if self._traced is None:
            return {}
        traced = self._traced
        return {"peak_bytes": traced.peak_bytes, "peak": traced.peak, "end_of_forward": traced.end_of_forward}

    def proof(self) -> dict[str, Any]:
        """What the traced step computed in which dtype; `eager` marks the figures as not those of compiled code."""
        if self._traced is None:
            return {}
        traced = asdict(self._traced)
        return {key: traced[key] for key in ("num_operators", "flops", "outputs")} | {"traced": "eager"}

    def state_dict(self) -> dict[str, Any]:
        """The scale counters, for a checkpoint; waits for the device."""
        return self._scale.state_dict()

    def load_state_dict(self, state: dict[str, Any], *, applied_steps: int) -> None:
        """Continue counting where a checkpoint stopped; a run without scaler knows of no skipped step."""
        self._applied_on_host = applied_steps
        fresh = {"num_observed": applied_steps, "skipped_steps": 0, "growth_tracker": 0}
        self._scale.load_state_dict(state or fresh)

    def _trace_is_due(self) -> bool:
        """The first step whose optimizer state exists already: the second, or the first applied one after skips."""
        if self._traced is not None or self._num_steps_seen == 0:
            return False
        return bool(self._optimizer.state) or self._num_steps_seen + 1 >= self._warmup_steps

    def _end_warmup(self) -> None:
        self._memory.after_warmup()
        self._sampler.after_warmup()

    def _on_optimizer_step(self, *_: Any) -> None:
        self._applied_on_host += 1
