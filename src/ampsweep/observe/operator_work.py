"""What the operators of a step do, in facts that decide how long they take on any device."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from ampsweep.nested_tensors import tensors_in
from ampsweep.numeric_formats import dtype_name
from ampsweep.observe.feeding import EXCHANGING
from ampsweep.observe.flops import ATTENTION, ATTENTION_BACKWARD, CONVOLUTIONS, formulas
from ampsweep.observe.operators import schema_of

Phase = Literal["forward", "backward", "update"]
"""`update` is all after the last backward: unscaling, clipping, the optimizer and the scaler."""
MatrixKind = Literal["product", "convolution", "attention", "recurrent"]
FusedKind = Literal[
    "elementwise", "transcendental", "copy", "cast", "fill", "softmax", "normalization", "batch_norm", "reduction"
]
Kind = Literal[MatrixKind, FusedKind, "gather", "foreach", "exchange", "wait", "none"]
"""`none`: no kernel runs, as for a view; `wait`: the host reads a value, and waits for the device; `exchange`: between
ranks."""


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """The work of a call of an operator, or of one of the matrix products that a call is."""

    operator: str  # `addmm`
    kind: Kind
    phase: Phase
    dtype: str | None = None  # of the first floating-point operand, or result
    flops: int = 0  # of products, convolutions and attention
    read_bytes: int = 0
    written_bytes: int = 0
    num_elements: int = 0  # of the largest tensor
    sizes: tuple[int, int, int, int] | None = None
    """A product's (batch, m, n, k): (batch, m, k) x (batch, k, n). A convolution's are those of the implicit product,
    the batch its groups; attention's are (batch x heads, queries, keys, head size)."""
    taps: int = 1  # weights of a convolution's kernel for one pair of channels: 9 for 3x3
    num_kernels: int = 0  # launches on an accelerator, at least
    num_calls: int = 1  # 0 for the second product of one call
    is_strided: bool = False  # operands differ in memory order (elementwise); not channels_last (convolutions)

    @property
    def num_bytes(self) -> int:
        return self.read_bytes + self.written_bytes


_KINDS: Final[dict[Kind, list[str]]] = json.loads(Path(__file__).with_name("operator_kinds.json").read_bytes())
_KIND_OF: Final = {name: kind for kind, names in _KINDS.items() for name in names}
_LISTS: Final = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_")
_INDEXING: Final = ("index", "index_put", "index_put_", "_index_put_impl_")
_COUNTING: Final = ("nonzero", "masked_select", "bincount", "_unique2", "unique_dim", "unique_consecutive")
_READS_NOTHING: Final = ("bernoulli_", "normal_", "uniform_", "exponential_", "rand_like", "randn_like", "randint_like")
_WRITES_PART: Final = ("_index_put_impl_", "index_put_", "index_add_", "index_copy_", "scatter_add_", "scatter_reduce_")
_TENSORS_A_LAUNCH: Final = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_CHUNKS_A_LAUNCH: Final = 320
_CHUNK: Final = 65536
"""What a launch over lists of tensors takes: tensors by the number of lists, chunks, elements of a chunk (torch's
ATen/native/cuda/MultiTensorApply.cuh)."""


class WorkLog:
    """The work of every operator of a step, in the order of the program."""

    def __init__(self) -> None:
        self._works: list[OperatorWork] = []
        self._formulas = formulas()
        self._phase: Phase = "forward"
        self.first_products: dict[Phase, int] = {}
        """The moment at which each phase first multiplies matrices."""
        self._same: dict[OperatorWork, OperatorWork] = {}

    def add(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        result: Any,
        *,
        in_backward: bool,
        moment: int = 0,
    ) -> int:
        """Add an operator that has run, at a moment of the ledger; return the number of its works."""
        operator = getattr(func, "overloadpacket", func)
        self._phase = "backward" if in_backward else "forward"
        before = len(self._works)
        for work in self._of(func, operator, args, kwargs, inputs, result):
            self._works.append(self._same.setdefault(work, work))
            if work.kind == "product":
                self.first_products.setdefault(self._phase, moment)
        return len(self._works) - before

    @property
    def works(self) -> list[OperatorWork]:
        last = max((place for place, work in enumerate(self._works) if work.phase == "backward"), default=-1)
        return [*self._works[: last + 1], *(replace(work, phase="update") for work in self._works[last + 1 :])]

    def _of(
        self, func: Any, operator: Any, args: Sequence[Any], kwargs: dict[str, Any], inputs: list[Tensor], result: Any
    ) -> Iterator[OperatorWork]:
        name, outputs = str(getattr(operator, "__name__", operator)), [*tensors_in(result)]
        tensors = [*inputs, *outputs]
        kind = _kind(func, operator, name, inputs, outputs)
        if reads_device(name, inputs, outputs):
            yield OperatorWork(name, "wait", self._phase)
            if name not in _INDEXING:
                return
        if kind == "none" or not tensors:
            yield OperatorWork(name, "none", self._phase)
            return
        floating = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)
        dtype = None if floating is None else dtype_name(floating)
        flops = self._formulas[operator](*args, **kwargs, out_val=result) if operator in self._formulas else 0
        if operator in CONVOLUTIONS:
            yield from self._convolution(name, args, inputs, outputs, dtype, flops)
            return
        read, written = _moved(func, name, kind, args, kwargs, inputs, outputs)
        full = max(tensors, key=Tensor.numel)
        lists = [found for argument in args if isinstance(argument, list | tuple) if (found := [*tensors_in(argument)])]
        num_elements = sum(map(Tensor.numel, lists[0])) if kind == "foreach" and lists else full.numel()
        yield OperatorWork(
            *(name, kind, self._phase, dtype, flops, read, written, num_elements),
            sizes=_sizes(kind, operator, args),
            num_kernels=_launches(lists) if kind == "foreach" and lists else 1,
            is_strided=any(_order(tensor) != _order(full) for tensor in tensors if tensor.shape == full.shape),
        )

    def _convolution(
        self, name: str, args: Sequence[Any], inputs: list[Tensor], outputs: list[Tensor], dtype: str | None, flops: int
    ) -> Iterator[OperatorWork]:
        """The products of a convolution: one in forward, in backward one for each gradient."""
        is_backward = name == "convolution_backward"
        x, weight = inputs[is_backward], inputs[is_backward + 1]
        y = inputs[0] if is_backward else outputs[0]
        transposed, groups = (args[7], args[9]) if is_backward else (args[6], args[8])
        taps, positions = prod(weight.shape[2:]), (x if transposed else y).shape
        num_positions = positions[0] * prod(positions[2:])
        channels_in, channels_out = (tensor.shape[1] // groups for tensor in (x, y))
        forward = num_positions, channels_out, channels_in * taps
        products = [(forward, x, weight, y)]
        if is_backward:
            of_x, of_weight = (
                (num_positions, channels_in, channels_out * taps),
                (channels_out, channels_in * taps, num_positions),
            )
            gradients = (of_x, y, weight, x), (of_weight, x, y, weight)
            products = [one for one, wanted in zip(gradients, args[10], strict=False) if wanted]
        for number, (sizes, first, second, written) in enumerate(products):
            yield OperatorWork(
                *(name, "convolution", self._phase, dtype, flops // len(products)),
                *(num_bytes(first) + num_bytes(second), num_bytes(written), max(x.numel(), y.numel())),
                sizes=(groups, *sizes),
                taps=taps,
                num_kernels=1,
                num_calls=int(number == 0),
                is_strided=x.dim() > 3 and not x.is_contiguous(memory_format=_CHANNELS_LAST[x.dim()]),
            )
        if is_backward and args[10][2]:  # the bias
            moved = num_bytes(y), channels_out * groups * y.element_size(), y.numel()
            yield OperatorWork(name, "reduction", self._phase, dtype, 0, *moved, num_kernels=1, num_calls=0)


_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def _kind(func: Any, operator: Any, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> Kind:
    if getattr(func, "is_view", False) or name == "wait_tensor":
        return "none"
    if getattr(func, "namespace", None) in EXCHANGING:
        return "copy" if func.namespace == "fsdp" else "exchange"
    if operator in ATTENTION or operator in ATTENTION_BACKWARD:
        return "attention"
    if "rnn" in name:
        return "recurrent"
    if operator in CONVOLUTIONS:
        return "convolution"
    if name.startswith(_LISTS):
        return "foreach"
    if name in ("copy_", "_to_copy") and (inputs[-1].dtype != (outputs[0] if outputs else inputs[0]).dtype):
        return "cast"
    return _KIND_OF.get(name) or _KIND_OF.get(name.removesuffix("_"), "elementwise")


def reads_device(name: str, taken: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
    """Return True if the host waits for an operator: it reads a value or the size of a result, counts the elements of a
    mask, or copies a tensor to the host."""
    if name in ("_local_scalar_dense", "equal", *_COUNTING):
        return True
    if name in _INDEXING:
        positions = taken[1:] if name == "index" else taken[1:-1]
        return any(tensor.dtype == torch.bool for tensor in positions)
    hosts = [tensor.device.type == "cpu" for tensor in made]
    return bool(hosts) and all(hosts) and any(tensor.device.type != "cpu" for tensor in taken)


def num_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements, those of a broadcast dimension once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or size < 2)
    return prod(sizes) * tensor.element_size() if tensor.layout is torch.strided else tensor.element_size()


def _moved(
    func: Any,
    name: str,
    kind: Kind,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: list[Tensor],
    outputs: list[Tensor],
) -> tuple[int, int]:
    """Bytes read and written."""
    written = [*_mutated(func, args, kwargs)]
    if name.startswith("_fused_"):  # the gradients are written if there is a scale to divide by
        written = [*tensors_in(args[0]), *tensors_in(args[2:5]), *(() if kwargs.get("grad_scale") is None else args[1])]
    of_inputs = {id(tensor): num_bytes(tensor) for tensor in inputs}
    of_outputs = sum(num_bytes(tensor) for tensor in (written or outputs))
    if kind == "fill" or name in _READS_NOTHING:
        of_inputs = {}
    elif name == "copy_":
        of_inputs.pop(id(inputs[0]))
    elif name in _WRITES_PART:  # as much as it is given, and reads what was there
        of_inputs[id(inputs[0])] = of_outputs = num_bytes(inputs[-1])
    elif name in ("_embedding_bag", "_embedding_bag_forward_only"):
        of_inputs[id(inputs[0])] = inputs[1].numel() * inputs[0].shape[1] * inputs[0].element_size()
    elif name in ("embedding", "index", "index_select", "gather"):  # reads what it returns, and the positions
        of_inputs = {id(inputs[-1]): num_bytes(inputs[-1]), 0: of_outputs}
    if name.startswith("nll_loss"):  # reads a value for each target
        of_inputs.pop(id(max(inputs, key=Tensor.numel)))
    passes = 2 if "norm" in name and ("backward" in name or "batch_norm" in name) else 1
    return passes * sum(of_inputs.values()), of_outputs


def _mutated(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    if not hasattr(func, "_schema"):
        return
    for position, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[position] if position < len(args) else kwargs.get(argument.name))


def _sizes(kind: Kind, operator: Any, args: Sequence[Any]) -> tuple[int, int, int, int] | None:
    if kind == "attention":
        query, key = args[1:3] if operator in ATTENTION_BACKWARD else args[:2]
        return prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1]
    if kind != "product":
        return None
    operands = [
        tensor for tensor in tensors_in(args[:2] if operator is torch.ops.aten._scaled_mm else args) if tensor.dim() > 1
    ]
    first, second = operands[-2:] if len(operands) > 1 else (operands[0], operands[0][0, :, None])
    return prod(first.shape[:-2]), first.shape[-2], second.shape[-1], first.shape[-1]


def _launches(lists: Sequence[Sequence[Tensor]]) -> int:
    chunks = sum(ceil(tensor.numel() / _CHUNK) for tensor in lists[0])
    return max(ceil(len(lists[0]) / _TENSORS_A_LAUNCH.get(len(lists), 30)), ceil(chunks / _CHUNKS_A_LAUNCH))


def _order(tensor: Tensor) -> list[int]:
    """The dimensions in the order in which memory holds them, without those of one element."""
    strides = tensor.stride()
    return sorted((d for d in range(tensor.dim()) if tensor.shape[d] > 1), key=strides.__getitem__, reverse=True)
