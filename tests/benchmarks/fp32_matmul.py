"""Steps under each setting of `precision.fp32_matmul`: `python tests/benchmarks/fp32_matmul.py`, see README.md.

Blocks of steps of an MLP, nearly all of which are matmuls, alternate within one process, on the same model and batch.
The switches are set whether the setting is supported or not: where nothing is rounded another library may still take
another time. JSON goes to stdout.
"""

import argparse
import json
import os
from time import perf_counter

import torch
from rounds import machine, spread
from torch import nn

from ampsweep.config.schema import FP32_MATMULS, PrecisionConfig
from ampsweep.models.mlp import MLP
from ampsweep.precision.arithmetic import kept_bits
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.precision.precision import unsupported_reason

CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    size = arguments.hidden_size
    model = MLP(in_features=size, hidden_size=size, out_features=size, num_layers=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(arguments.batch_size, size)
    times_ms: dict[str, list[float]] = {setting: [] for setting in FP32_MATMULS}
    loads = []
    for _ in range(arguments.rounds):
        loads.append(os.getloadavg()[0])
        for setting, times in times_ms.items():
            with fp32_arithmetic(matmul=setting, tf32=False):
                _step(model, optimizer, batch)  # warms caches of the library that the setting chooses
                began = perf_counter()
                for _ in range(5):
                    _step(model, optimizer, batch)
                times.append(1e3 * (perf_counter() - began) / 5)
    found = {setting: _facts(setting, times, times_ms["highest"]) for setting, times in times_ms.items()}
    print(json.dumps({"machine": machine(loads), "arguments": vars(arguments), "settings": found}, indent=1))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _facts(setting: str, times_ms: list[float], highest_ms: list[float]) -> dict[str, object]:
    with fp32_arithmetic(matmul=setting, tf32=False):
        bits = kept_bits(CPU)["matmul"]
    return {
        "bits": bits,
        "unsupported": unsupported_reason(PrecisionConfig(mode="fp32", fp32_matmul=setting), CPU),
        "step_ms": spread(times_ms),
        "ratio": spread([one / other for one, other in zip(times_ms, highest_ms, strict=True)]),
    }


if __name__ == "__main__":
    main()
