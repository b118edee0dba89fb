"""What a choice of arithmetic costs a step: `python tests/benchmarks/step_times.py optimizers`, see README.md.

`optimizers`: an optimizer's step by what it keeps, on parameters with the shapes of a GPT's, as ratios to torch's fused
AdamW on float32. `fp32_matmul`: a float32 step of an MLP, nearly all of which are matmuls, under each setting of
`precision.fp32_matmul`, whether it is supported or not, and the bits that it keeps: where nothing is rounded another
library may still take another time. All take their steps in turn, in one process. JSON goes to stdout.
"""

import argparse
import json
import os
import random
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from rounds import machine, spread

from ampsweep.config.schema import FP32_MATMULS, PrecisionConfig
from ampsweep.models.gpt import GPT
from ampsweep.models.mlp import MLP
from ampsweep.precision import Precision
from ampsweep.precision.arithmetic import kept_bits
from ampsweep.precision.flags import fp32_arithmetic
from ampsweep.precision.precision import unsupported_reason

CPU = torch.device("cpu")
KEPT = {mode: (mode, None) for mode in ("fp32", "pure_bf16", "master_bf16", "master_fp16", "bf16_sr")}
KEPT["fp32, bfloat16 states"] = ("fp32", "bfloat16")
SIZES = {
    "small": {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "vocab_size": 1024},
    "large": {"num_layers": 12, "hidden_size": 768, "num_heads": 12, "vocab_size": 50257},
}
"""Of the GPT; the MLP has 256 units or 1,024."""

Step = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("optimizers", "fp32_matmul"))
    parser.add_argument("--size", choices=tuple(SIZES), default="small")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu", help="of the optimizers")
    arguments = parser.parse_args()
    if arguments.what == "fp32_matmul":
        torch.set_num_threads(1)
        steps, first = _matmul_steps(1024 if arguments.size == "large" else 256), "highest"
    else:
        steps, first = {name: _optimizer(*kind, arguments) for name, kind in KEPT.items()}, "fp32"
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.rounds + 2):
        for name in random.sample([*steps], len(steps)):
            times[name].append(_timed(steps[name], arguments.device))
    times = {name: of[2:] for name, of in times.items()}
    figures = {}
    for name, of in times.items():
        ratio = spread([one / other for one, other in zip(of, times[first], strict=True)])
        facts = _facts(name) if arguments.what == "fp32_matmul" else {}
        figures[name] = {"step_ms": spread(of), "ratio": ratio, **facts}
    environment = {"machine": machine([os.getloadavg()[0]]), "num_threads": torch.get_num_threads()}
    print(json.dumps({**environment, "arguments": vars(arguments), "steps": figures}, indent=1))


def _timed(step: Step, device: str) -> float:
    """Milliseconds of a step that follows one of the same kind."""
    step()
    wait = torch.accelerator.synchronize if device != "cpu" else lambda: None
    wait()
    began = perf_counter()
    step()
    wait()
    return 1e3 * (perf_counter() - began)


def _optimizer(mode: str, state_dtype: str | None, arguments: argparse.Namespace) -> Step:
    precision = Precision(mode, arguments.device)
    torch.manual_seed(0)
    model = precision.convert(GPT(seq_len=64, **SIZES[arguments.size]))
    build = partial(torch.optim.AdamW, lr=1e-4, fused=True)
    optimizer = precision.optimizer(build, model.parameters(), state_dtype=state_dtype)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return optimizer.step


def _matmul_steps(size: int) -> dict[str, Step]:
    model = MLP(in_features=size, hidden_size=size, out_features=size, num_layers=4)
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(256, size)

    def step(setting: str) -> None:
        with fp32_arithmetic(matmul=setting, tf32=False):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return {setting: partial(step, setting) for setting in FP32_MATMULS}


def _facts(setting: str) -> dict[str, object]:
    with fp32_arithmetic(matmul=setting, tf32=False):
        bits = kept_bits(CPU)["matmul"]
    return {"bits": bits, "unsupported": unsupported_reason(PrecisionConfig(mode="fp32", fp32_matmul=setting), CPU)}


if __name__ == "__main__":
    main()
