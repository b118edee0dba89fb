"""Evaluation on the validation batches."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ampsweep.data.base import Data
from ampsweep.precision import Precision
from ampsweep.tasks.base import Task
from ampsweep.tracing.feeding import fed_each


class PrepareBatch(Protocol):
    """A function that converts a batch to the dtype and layout the model takes."""

    def __call__(self, batch: Any, /) -> Any: ...


@torch.no_grad()
def evaluate(
    model: nn.Module, data: Data, task: Task, precision: Precision, prepare: PrepareBatch, how: str | None = None
) -> dict[str, float]:
    """Compute the mean of each of the task's values over all validation items, keyed `val/...`.

    `how` is `full` or `autocast`, in place of `precision.eval`.

    Sums are kept in float64 if the device has it, so that large sums lose no digits. The device is read once.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, Tensor] = {}
    num_items = 0
    for batch in fed_each(data.val_batches()):
        with precision.eval_autocast(how):
            values, count = task.evaluate(model, prepare(batch))
        for name in values:
            weighted = values[name].to(torch.float32 if values[name].device.type == "mps" else torch.float64) * count
            sums[name] = sums[name] + weighted if name in sums else weighted
        num_items += count
        del values  # a loss can lie in a storage as large as the model's outputs
    model.train(was_training)
    if not sums:
        return {}
    means = (torch.stack(list(sums.values())) / num_items).tolist()
    return {f"val/{name}": mean for name, mean in zip(sums, means, strict=True)}
