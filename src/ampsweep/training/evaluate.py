"""Evaluation on the validation batches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ampsweep.data.base import Data, val_sets
from ampsweep.data.generators import restored
from ampsweep.observe.feeding import fed_each
from ampsweep.parallel.base import SINGLE, Parallel
from ampsweep.precision import Precision
from ampsweep.tasks.base import MeasuresWholeSet, ShowsMedia, Task

_Outputs = dict[str, dict[str, list[Tensor | None]]]
"""A rank's outputs on the CPU, by prefix of keys, name and round; None for a batch that does not count."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Data,
    task: Task,
    precision: Precision,
    prepare: Callable[[Any], Any],
    how: str | None = None,
    parallel: Parallel = SINGLE,
    media: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Compute the mean of each of the task's values over the validation items of all ranks, keyed `val/...`.

    Of several validation sets each has its own keys, `val/SET/...`, and `val/...` is over the items of all of them.
    `media`, if given, gets the images and tables that the task makes of this rank's first batch.

    Sums are accumulated in float64 if the device has it, so that they lose no digits. The device is read once, or for
    each batch of a task that measures whole sets. `prepare` converts a batch for the model; `how` (`full` or
    `autocast`) overrides `precision.eval`.
    """
    sums: dict[tuple[str, str], Tensor] = {}
    num_items: dict[str, int] = {}
    outputs: _Outputs = {}

    def evaluated(batch: Any) -> tuple[dict[str, Tensor], int]:
        with precision.eval_autocast(how):
            if media is not None and not num_items and isinstance(task, ShowsMedia):
                with restored(), torch.random.fork_rng([precision.device] if precision.device.type == "cuda" else []):
                    media.update(task.media(model, batch))
            return task.evaluate(model, batch)

    def add(prefix: str, values: dict[str, Tensor], count: int, *, counts: bool) -> None:
        of_set = outputs.setdefault(prefix, {})
        for name, value in values.items():
            if value.dim():  # a copy, since a view would keep the whole output
                of_set.setdefault(name, []).append(value.detach().to("cpu", copy=True) if counts else None)
                continue
            weighted = value.to(torch.float32 if value.device.type == "mps" else torch.float64) * count
            if not counts:  # zeros, not a product with 0, which would keep a NaN
                weighted = torch.zeros_like(weighted)
            sums[prefix, name] = sums[prefix, name] + weighted if (prefix, name) in sums else weighted
        num_items[prefix] = num_items.get(prefix, 0) + (count if counts else 0)

    was_training = model.training
    model.eval()
    with parallel.evaluation(model):
        for set_name, rounds in val_sets(data).items():
            for batch, counts in fed_each(rounds):
                values, count = evaluated(prepare(batch))
                for prefix in ("", f"{set_name}/") if set_name else ("",):
                    add(prefix, values, count, counts=counts)
                del values  # a loss can lie in a storage as large as the model's outputs
    model.train(was_training)
    if not sums:
        return {}
    totals = parallel.total([*torch.stack(list(sums.values())).tolist(), *num_items.values()])
    items = dict(zip(num_items, totals[len(sums) :], strict=True))
    means = {f"val/{of}{name}": total / items[of] for (of, name), total in zip(sums, totals, strict=False)}
    if isinstance(task, MeasuresWholeSet) and not getattr(data, "is_partial", False):
        return means | _of_whole_sets(task, outputs, parallel)
    return means


def _of_whole_sets(task: MeasuresWholeSet, outputs: _Outputs, parallel: Parallel) -> dict[str, float]:
    """Compute the task's own metrics over the outputs of all ranks; every rank has the figures of rank 0."""
    ranks, found = parallel.gather(outputs), dict[str, float]()
    for prefix, names in outputs.items():
        whole = {}
        for name in names:
            rounds = zip(*(rank[prefix][name] for rank in ranks), strict=True)
            whole[name] = torch.cat([output for of_ranks in rounds for output in of_ranks if output is not None])
        metrics = task.evaluation_metrics(whole)
        found |= {f"val/{prefix}{name}": float(value) for name, value in metrics.items()}
    return parallel.gather(found)[0]
