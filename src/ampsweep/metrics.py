"""Every metric key of the suite, with its unit, its meaning and the better direction."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from ampsweep.memory_categories import MEMORY_CATEGORIES, memory_key

Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True, slots=True)
class Metric:
    key: str
    unit: str
    meaning: str
    better: Better = "neither"


AUTOCAST_PENALTY: Final = "val/autocast_penalty"
CLIPPED: Final = "train/clipped_pct"
GRAD_NORM: Final = "train/grad_norm"

_METRICS = (
    Metric("train/loss", "", "mean training loss of the step, summed over its turns (each `train/loss/NAME`)", "lower"),
    Metric(GRAD_NORM, "", "2-norm of all gradients, unscaled, before clipping"),
    Metric(CLIPPED, "%", "share of logged steps with a gradient norm above its limit (0 or 100 in a row)"),
    Metric("train/lr", "", "learning rate the step was taken with, of the first parameter group"),
    Metric("val/loss", "", "mean validation loss", "lower"),
    Metric("val/accuracy", "", "share of validation items classified correctly", "higher"),
    Metric(AUTOCAST_PENALTY, "", "validation loss under autocast minus that in full precision, at the end", "lower"),
    Metric("amp/scale", "", "factor the loss was multiplied by in this step"),
    Metric("amp/growth_tracker", "steps", "applied steps since the scale last changed"),
    Metric("amp/skipped_steps", "steps", "steps skipped so far for non-finite gradients", "lower"),
    Metric("amp/applied_steps", "steps", "steps applied so far", "higher"),
    Metric("perf/step_ms", "ms", "time of a step; in the summary the median after warm-up", "lower"),
    Metric("perf/step_ms_iqr", "ms", "interquartile range of the step time after warm-up", "lower"),
    Metric("perf/step_ms_p95", "ms", "95th percentile of the step time after warm-up", "lower"),
    Metric("perf/data_wait_ms", "ms", "mean host time a step spent on getting its data", "lower"),
    Metric("perf/launch_ms", "ms", "median host time of launching a step on an idle device (accelerators)", "lower"),
    Metric("perf/device_lag_ms", "ms", "median time by which the device ends a step after its launch (accelerators)"),
    Metric("perf/communication_ms", "ms", "median wait for other ranks, on the rank that waits least", "lower"),
    Metric("perf/reduced_mib", "MiB", "bytes of gradients that a rank hands to the reduction in a step", "lower"),
    Metric("perf/samples_per_sec", "1/s", "training samples per second of wall time, also between steps", "higher"),
    Metric("perf/tokens_per_sec", "1/s", "training tokens per second of wall time, also between steps", "higher"),
    Metric("perf/tflops_per_sec", "TFLOP/s", "model arithmetic done, without what backward computes again", "higher"),
    Metric("perf/mfu_pct", "%", "model arithmetic done, as share of the device's dense peak for its dtypes", "higher"),
    Metric("memory/peak_allocated_gib", "GiB", "peak of allocated tensor bytes after warm-up", "lower"),
    Metric("memory/peak_allocated_run_gib", "GiB", "peak of allocated tensor bytes over the whole run", "lower"),
    Metric("memory/peak_allocated_spread_gib", "GiB", "peak on the fullest rank less that on the emptiest", "lower"),
    Metric("memory/peak_reserved_gib", "GiB", "peak of memory reserved by the allocator", "lower"),
    Metric("memory/process_gib", "GiB", "memory of the process, by the driver on a GPU; in the end its peak", "lower"),
    Metric("memory/num_retries", "requests", "allocations that had unused memory given back, after warm-up", "lower"),
    Metric("memory/num_refused", "requests", "allocations of the run refused for lack of memory", "lower"),
    *(
        Metric(memory_key(category), "GiB", f"{what} at the peak of the traced step", "lower")
        for category, what in MEMORY_CATEGORIES.items()
    ),
    Metric("memory/largest_batch", "samples", "largest micro-batch that trains, as a search found it", "higher"),
    Metric("device/utilization_pct", "%", "share of time the device was busy (CPU: this process, all cores)", "higher"),
    Metric("device/busy_cores", "cores", "processor time of this process over wall time (CPU only)"),
    Metric("device/memory_used_gib", "GiB", "memory in use on the device by all processes", "lower"),
    Metric("device/power_w", "W", "power drawn by the device"),
    Metric("device/energy_j", "J", "energy used by the device since the run began", "lower"),
    Metric("device/energy_per_sample_j", "J", "energy used by the device for a training sample after warm-up", "lower"),
    Metric("device/temperature_c", "°C", "temperature of the device"),
    Metric("device/clock_mhz", "MHz", "clock of the device's compute units"),
    Metric("device/throttled_pct", "%", "share of samples in which heat or protection slowed the device down", "lower"),
    Metric("device/power_capped_pct", "%", "share of samples in which the power limit held the device's clocks down"),
    Metric("numerics/unchanged_pct", "%", "share of the weights that an applied step left as they were", "lower"),
    Metric("numerics/float16_underflow_pct", "%", "share of scaled gradients below float16's smallest normal", "lower"),
    Metric("numerics/max_activation", "", "largest magnitude that a module returned (`numerics.watch`)"),
    Metric("numerics/max_gradient", "", "largest magnitude of an unscaled gradient (`numerics.watch`)"),
    Metric("instrumentation/overhead_pct", "%", "time lost between steps and to the suite in them", "lower"),
    Metric("instrumentation/watch_pct", "%", "time that looking into steps took (`numerics.watch`)", "lower"),
)

METRICS: Final[dict[str, Metric]] = {metric.key: metric for metric in _METRICS}

Goal = Literal["minimize", "maximize"]  # which way a metric is better, in W&B's words

LOSSES: Final = (
    *("val/loss", "eval/loss", "eval_loss", "val_loss", "valid/loss", "valid_loss"),
    *("validation/loss", "validation_loss", "dev/loss", "dev_loss", "loss/val"),
)
"""Names of a validation loss: the suite's own, and those of other trainings, the most common first."""

_MINIMIZED: Final = (
    *("loss", "nll", "perplexity", "ppl", "error", "err", "mae", "mse", "rmse", "mape", "wer", "cer", "fid", "kl"),
    "bpb",
)
_MAXIMIZED: Final = (
    *("accuracy", "acc", "f1", "auc", "auroc", "auprc", "map", "ap", "precision", "recall", "mcc", "dice", "iou"),
    *("miou", "bleu", "rouge", "meteor", "psnr", "ssim", "r2"),
)


def goal_of(key: str) -> Goal | None:
    """Which way a metric is better, by the last word of its name that tells; None without such a word.

    >>> goal_of("eval/rouge1"), goal_of("val/f1_macro"), goal_of("eval/loss"), goal_of("reward")
    ('maximize', 'maximize', 'minimize', None)
    """
    for word in reversed(re.findall(r"[a-z0-9]+", key.lower())):
        for name in (word, word.rstrip("0123456789")):
            if name in _MINIMIZED or name in _MAXIMIZED:
                return "minimize" if name in _MINIMIZED else "maximize"
    return None


MEASURED: Final = ("perf/", "memory/", "device/", "instrumentation/")
"""Prefixes of keys that measure the process. A row holds the figure of its step, the summary that of all steps after
warm-up. Of the other keys, which are values of the training, the summary repeats the last row's."""

MEDIA: Final = "media/"  # prefix of a row's keys that list files of images or a table, as paths in the run's directory

STEP: Final = "step"  # the key of the step in every history row: optimizer steps attempted so far, from 1
