"""Evaluation on the validation batches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ampsweep.data.base import Data, val_rounds
from ampsweep.observe.feeding import fed_each
from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.precision import Precision
from ampsweep.tasks.base import Task


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Data,
    task: Task,
    precision: Precision,
    prepare: Callable[[Any], Any],
    how: str | None = None,
    parallel: Parallel = SINGLE,
) -> dict[str, float]:
    """Compute the mean of each of the task's values over the validation items of all ranks, keyed `val/...`.

    Sums are accumulated in float64 if the device has it, so that they lose no digits. The device is read once.
    `prepare` converts a batch for the model; `how` (`full` or `autocast`) overrides `precision.eval`.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, Tensor] = {}
    num_items = 0
    with parallel.evaluation(model):
        for batch, counts in fed_each(val_rounds(data)):
            with precision.eval_autocast(how):
                values, count = task.evaluate(model, prepare(batch))
            for name in values:
                weighted = _widen(values[name]) * count
                if not counts:  # zeros, not a product with 0, which would keep a NaN
                    weighted = torch.zeros_like(weighted)
                sums[name] = sums[name] + weighted if name in sums else weighted
            num_items += count if counts else 0
            del values  # a loss can lie in a storage as large as the model's outputs
    model.train(was_training)
    if not sums:
        return {}
    *totals, total_items = parallel.total([*torch.stack(list(sums.values())).tolist(), num_items])
    return {f"val/{name}": total / total_items for name, total in zip(sums, totals, strict=True)}


def _widen(value: Tensor) -> Tensor:
    return value.to(torch.float32 if value.device.type == "mps" else torch.float64)
