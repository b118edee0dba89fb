"""torchao's optimizers, which keep their states in 8 bits, in place of torch's own with the same update.

Block-wise quantization: T. Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861).
"""

import inspect
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.precision.torchao_import import import_torchao
from ampsweep.tracing.feeding import unseen
from ampsweep.training.build.instantiate import parameters_of

EIGHT_BITS: Final[Mapping[str, Mapping[type[Optimizer], str]]] = {
    "int8": {torch.optim.Adam: "Adam8bit", torch.optim.AdamW: "AdamW8bit"},
    "float8": {torch.optim.Adam: "AdamFp8", torch.optim.AdamW: "AdamWFp8"},
}
"""torchao's class for each of torch's, by `optimizer.state_dtype`."""

_MODULE: Final = "torchao.optim.adam"
BLOCK: Final = 256
"""Numbers that share a scale, in torchao's classes where nobody says otherwise."""
FEWEST: Final = 4096
"""Numbers of the smallest parameter whose states torchao keeps in 8 bits (`_AdamBase._new_buffer` in torchao 0.18)."""


def is_torchaos(target: Any) -> bool:
    """Tell whether it is a class of torchao's whose states are packed."""
    return getattr(target, "__module__", "") == _MODULE


def eight_bit_class(
    key: str, target: Any, state_dtype: str | None, device: torch.device | None = None
) -> type[Optimizer]:
    """Find torchao's class for one of torch's.

    Args:
        key: the config's key of the optimizer.
        target: the class of the config; one of torchao's own stands for itself, where no dtype is asked for.
        device: the device that the parameters are on, or stand for. None: they only try the class.

    Raises:
        UserError: torchao has none, or is not installed.
    """
    if state_dtype is not None:
        known = EIGHT_BITS[state_dtype]
        if target not in known:
            named, has = getattr(target, "__name__", target), " and ".join(one.__name__ for one in known)
            raise UserError(f"{key}.state_dtype={state_dtype}: torchao has no 8-bit {named}; it has {has}")
        try:
            module = import_torchao("torchao.optim", f"{key}.state_dtype={state_dtype}")
        except ValueError as error:
            raise UserError(str(error)) from error
        target = getattr(module, known[target])
    _make_tables()
    return _stepping(target, is_compiled=device is not None and device.type == "cuda")


def update_of(class_name: str) -> str:
    """The name of torch's class whose update a class of torchao computes; of any other class its own name."""
    for known in EIGHT_BITS.values():
        for target, name in known.items():
            if class_name == f"{_MODULE}.{name}":
                return target.__name__
    return class_name


def eight_bit_arguments(
    key: str, kind: type[Optimizer], given: Mapping[str, Any], *, stochastic_rounding: bool = False
) -> dict[str, Any]:
    """Keep the arguments that torchao's class has; those that are false ask for nothing that it lacks.

    Args:
        stochastic_rounding: bfloat16 parameters are rounded stochastically.

    Raises:
        UserError: one is set that it does not have.
    """
    taken = parameters_of(kind)
    for name, value in given.items():
        if name not in taken and value not in (None, False):
            shown = str(value).lower() if isinstance(value, bool) else value
            raise UserError(f"{key}.{name}={shown}: torchao's {kind.__name__} has no such argument")
    if given.get("amsgrad"):  # it calls torch.maximum on packed states, which they do not have
        raise UserError(f"{key}.amsgrad=true: torchao's {kind.__name__} cannot compute it on states in 8 bits")
    kept = {name: value for name, value in given.items() if name in taken}
    return kept | {"bf16_stochastic_round": True} if stochastic_rounding else kept


def check_compiler(what: str, device: torch.device) -> None:
    """Refuse a device on which torchao's step, which is compiled there, cannot be.

    Args:
        what: the setting that asks for the step.

    Raises:
        UnsupportedError: Triton or the C compiler that it calls is missing.
    """
    if device.type != "cuda":
        return
    needed = f"{what} on {device.type}: torchao compiles its step, which needs"
    if find_spec("triton") is None:
        raise UnsupportedError(f"{needed} Triton, and there is none")
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        raise UnsupportedError(f"{needed} a C compiler, and there is neither gcc nor clang, nor one that CC names")


def check_sizes(key: str, settings: Mapping[str, Any], parameters: Iterable[Tensor]) -> None:
    """Refuse parameters of none of which torchao would keep the states in 8 bits.

    Args:
        key: the config's key of the optimizer that trains them.
        settings: its settings.
        parameters: the parameters, which may be on the meta device.

    Raises:
        UnsupportedError: all are too small, or no multiple of a block.
    """
    block = settings.get("block_size", BLOCK)
    sizes = [one.numel() for one in parameters]
    if not any(size >= FEWEST and size % block == 0 for size in sizes):
        raise UnsupportedError(
            f"{key}.state_dtype={settings['state_dtype']} would change nothing: torchao keeps states in 8 bits of "
            f"parameters with {FEWEST:,} numbers or more, a multiple of {block}, and none of these {len(sizes)} is one"
        )


@cache
def _make_tables() -> None:
    """Let torchao make the tables of the numbers that its codes stand for, which it keeps for the whole process.

    Made first in a prediction, on a device without values, they would be wrong in the training, too.
    """
    eight_bit = import_torchao("torchao.optim.subclass_8bit", "optimizer.state_dtype")
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        eight_bit.get_qmap_signed()
        eight_bit.get_qmap_unsigned()


@cache
def _stepping(kind: type[Optimizer], *, is_compiled: bool) -> type[Optimizer]:
    """The same class, under the same name, with a step that computes the same in each step of a training.

    torchao calls `torch.compile` for each parameter. A compiled step rounds otherwise than an eager one, and within a
    trace nothing is compiled. So on CUDA, where an eager step would launch dozens of kernels for each parameter, every
    step is compiled, outside the trace where there is one, which does not see its operators. Elsewhere every step is
    eager: it needs no compiler, and none of the seconds that each shape takes to be compiled.
    """
    hooked = kind.step  # once an optimizer of the class was made, torch's wrapper around it, which calls its hooks
    plain: Callable[..., Any] = inspect.unwrap(hooked, stop=lambda one: not hasattr(one, "hooked"))
    how = _compiled if is_compiled else _eager

    def step(self: Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        with how(self):
            found: float | None = plain(self, closure)
            return found

    own = {"step": step, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), own)


def _eager(_: Optimizer) -> AbstractContextManager[Any]:
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def _compiled(optimizer: Optimizer) -> Iterator[None]:
    """Let the step be compiled, within a trace too; of fake parameters only its sizes are computed."""
    first = optimizer.param_groups[0]["params"][0]
    if isinstance(first, FakeTensor):
        with unseen(), torch.compiler.set_stance("force_eager"):
            yield
        return
    with _disable_current_modes(), torch.compiler.set_stance("default"), warnings.catch_warnings():
        # torch hopes for a hash of its classes from torchao
        warnings.filterwarnings("ignore", message=".*does not implement _stable_hash_for_caching")
        yield
