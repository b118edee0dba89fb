"""The price of a change: the time and memory of a step with it, over those without."""

import statistics
from time import perf_counter
from typing import Final

import torch

from ampsweep.doctor.loss.function_calls import CalledFunction
from ampsweep.doctor.loss.variant import Variant, VariantReplay
from ampsweep.doctor.patient import Patient
from ampsweep.tracing.step import trace_step

_NUM_PAIRS: Final = 7
"""Steps of each that are timed, in turn."""


def price(patient: Patient, changed: Variant) -> dict[str, float]:
    """Measure the steps of a training as it is and with a change, in turn.

    `time_ratio`: the median over pairs of steps of the time with the change over that without; `memory_ratio`: the same
    of the peak of the tensors' bytes in a traced step. Steps whose numbers are not finite take their time, too. A
    change of lines of code has no time: what stands in for it here is slower than the changed lines are.
    """
    replays = [Variant().replay(patient), changed.replay(patient)]
    peaks = []
    for one in replays:
        one.step()  # after it there is optimizer state
        replay = one.replay
        with trace_step(replay.model, *replay.built.optimizers.values()) as trace:
            one.step()
        peaks.append(trace.result.peak_bytes)
    memory = {"memory_ratio": peaks[1] / peaks[0]}
    if any(isinstance(one, CalledFunction) for one in changed.kept):
        return memory
    ratios: list[float] = []
    while len(ratios) < _NUM_PAIRS and (not ratios or patient.seconds_left > 0):
        pair = replays if len(ratios) % 2 else replays[::-1]
        times = {one: _timed(one) for one in pair}
        ratios.append(times[replays[1]] / times[replays[0]])
    return {"time_ratio": statistics.median(ratios), "num_timed_steps": len(ratios), **memory}


def _timed(replay: VariantReplay) -> float:
    """Seconds of the next step, to its end on the device."""
    device = replay.replay.device
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    began_s = perf_counter()
    replay.step()  # reads its losses, and so waits for the device
    return perf_counter() - began_s
