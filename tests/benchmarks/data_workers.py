"""What workers save: `python tests/benchmarks/data_workers.py`, see README.md.

Trainings alternate, each on data of its own: one whose items take 5 ms to read, without workers, with two and with as
many as it chooses; and tensors in memory, by `MapDataset` and by a dataset of the user's. JSON goes to stdout.
"""

import argparse
import json
import os
import statistics
import time

import torch
from rounds import machine, spread
from torch.utils.data import Dataset, TensorDataset

from ampsweep.data.base import stop_workers
from ampsweep.data.map_dataset import MapDataset

CPU = torch.device("cpu")


class Slow(Dataset):
    """Items that take some time, as from a disk or a network."""

    def __init__(self, item_s: float) -> None:
        self.item_s = item_s

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.item_s)
        return torch.full((64,), item / 10_000), torch.ones(1)


class Own(Dataset):
    """Tensors in memory behind a class of one's own."""

    def __init__(self) -> None:
        self.inputs, self.targets = torch.randn(1000, 64), torch.ones(1000, 1)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[item], self.targets[item]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--item-ms", type=float, default=5.0)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    own, tensors = Own(), TensorDataset(torch.randn(1000, 64), torch.ones(1000, 1))
    slow = Slow(arguments.item_ms / 1000)
    kinds: dict[str, tuple[Dataset[tuple[torch.Tensor, ...]], int]] = {
        "slow items, no worker": (slow, 0),
        "slow items, 2 workers": (slow, 2),
        "own dataset in memory": (own, 0),
        "TensorDataset in memory": (tensors, 0),
    }
    rounds = [
        {name: _trained(*kind, arguments.batch_size, arguments.steps) for name, kind in kinds.items()}
        for _ in range(arguments.rounds)
    ]
    variants = {
        name: {
            "step_ms": spread([one[name]["step_ms"] for one in rounds]),
            "data_wait_ms": spread([one[name]["data_wait_ms"] for one in rounds]),
        }
        for name in kinds
    }
    facts = {"machine": machine([os.getloadavg()[0]]), "num_rounds": arguments.rounds, "item_ms": arguments.item_ms}
    print(json.dumps(facts | {"batch_size": arguments.batch_size, "variants": variants}, indent=1))


def _trained(dataset: Dataset[tuple[torch.Tensor, ...]], workers: int, batch: int, steps: int) -> dict[str, float]:
    """Medians over the second half of a bare loop's steps."""
    data = MapDataset(train=dataset, val=dataset, batch_size=batch, seed=0, device=CPU, num_workers=workers)
    model = torch.nn.Linear(64, 1)
    waits, times = [], []
    for index in range(steps):
        began_s = time.perf_counter()
        inputs, targets = data.train_batch(index)
        waits.append(time.perf_counter() - began_s)
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        if isinstance(dataset, Slow):
            time.sleep(0.02)  # the step of an accelerator, which takes none of the host's cores
        times.append(time.perf_counter() - began_s)
    found = {"step_ms": times, "data_wait_ms": waits}
    stop_workers(data)
    return {name: 1000 * statistics.median(values[steps // 2 :]) for name, values in found.items()}


if __name__ == "__main__":
    main()
