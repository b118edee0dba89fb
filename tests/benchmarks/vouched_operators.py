"""Compare fake results with the CPU's, operator by operator, on the samples that torch tests its operators with.

Prints the operators that predictions vouch for though some sample takes other bytes (there should be none), and those
that agree on every sample though they are not vouched for. Needs expecttest, which torch's samples import.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ampsweep.predict.fake_kernels import FakeKernels, UntraceableError
from ampsweep.predict.target_device import TargetDevice
from ampsweep.predict.vouched_operators import doubt_about

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
SECONDS_PER_SAMPLE_SET = 1.0


class Comparison(TorchDispatchMode):
    """Runs every operator a second time on fake tensors; counts by operator how often the bytes agree."""

    def __init__(self) -> None:
        super().__init__()
        self._kernels = FakeKernels(TargetDevice("cpu"))
        self.agreed: Counter[Any] = Counter()
        self.different: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(one, FakeTensor) for one in types):
            return func(*args, **kwargs)
        try:
            fake = sizes(self._on_fake_tensors(func, args, kwargs))
        except (UntraceableError, NotImplementedError):
            fake = None  # a prediction refuses such a step, or names its operator
        result = func(*args, **kwargs)
        if fake is not None:
            (self.agreed if fake == sizes(result) else self.different)[func] += 1
        return result

    def _on_fake_tensors(self, func: Any, args: Any, kwargs: Any) -> Any:
        made: dict[int, Tensor] = {}

        def fake(tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                made[id(tensor)] = self._kernels.from_tensor(tensor, static_shapes=True)
            return made[id(tensor)]

        with self._kernels:
            args, kwargs = tree_map_only(Tensor, fake, (args, kwargs))
            return func(*args, **kwargs)


def sizes(result: Any) -> list[tuple[Any, ...] | None]:
    """Shape, dtype and bytes of every dense tensor in a result."""
    tensors = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
    return [
        (tuple(one.shape), one.dtype, one.untyped_storage().nbytes()) if one.layout is torch.strided else None
        for one in tensors
    ]


def compared(max_samples: int) -> Comparison:
    """Run the samples of every operator, and their backward passes."""
    comparison = Comparison()
    for sampled in op_db:
        for dtype in DTYPES:
            if sampled.supports_dtype(dtype, "cpu"):
                run_samples(sampled, dtype, comparison, max_samples)
    return comparison


def run_samples(sampled: Any, dtype: torch.dtype, comparison: Comparison, max_samples: int) -> None:
    """Run the first samples of one operator; those that torch itself cannot run are passed over."""
    differentiable = sampled.supports_autograd and dtype in sampled.supported_backward_dtypes("cpu")
    began = time.monotonic()
    for number, sample in enumerate(sampled.sample_inputs("cpu", dtype, requires_grad=differentiable)):
        if number == max_samples or time.monotonic() - began > SECONDS_PER_SAMPLE_SET:
            return
        try:
            with comparison:
                result = sampled(sample.input, *sample.args, **sample.kwargs)
                leaves = [one for one in tree_leaves(result) if isinstance(one, Tensor) and one.requires_grad]
                if leaves:
                    torch.autograd.backward([leaf.sum() for leaf in leaves])
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            continue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=12, help="samples of each operator and dtype")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = compared(arguments.samples)
    vouched = {func for func in found.agreed | found.different if doubt_about(func, on_cuda=False) is None}
    wrong = sorted(str(func) for func in vouched & set(found.different))
    untold = sorted(str(func) for func in set(found.agreed) - vouched - set(found.different))
    told = {"torch": torch.__version__, "compared": len(found.agreed | found.different), "vouched": len(vouched)}
    print(json.dumps({**told, "vouched_but_different": wrong, "agreed_but_not_vouched": untold}, indent=1))


if __name__ == "__main__":
    main()
