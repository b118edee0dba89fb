"""CUDA tensors whose memory is the host's, computed by the CPU's kernels in place of CUDA's.

Each operator that torch has a CUDA kernel for gets another one, which hands the CPU's the same memory. Results come
from torch's caching allocator, so that its statistics are those of the results; what a CUDA kernel takes for itself is
not in them. All above the kernels is torch's own: dispatch, autocast, autograd, streams, allocator, GradScaler.
"""

import hashlib
import warnings
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)

LEFT_TO_TORCH = (
    *("empty", "as_strided", "view", "_reshape_alias", "unfold", "set_", "resize_", "_resize_output", "lift"),
    *("_local_scalar_dense", "record_stream", "is_pinned", "_pin_memory", "_assert_async", "_efficientzerotensor"),
    *("_has_same", "_lazy_clone", "_nested", "_sparse", "sparse", "_to_sparse", "to_sparse", "_coalesce", "_spsolve"),
    *("quantize", "dequantize", "q_", "qscheme", "int_repr", "_make_per", "_cslt", "_validate", "_linalg_check"),
    *("_fused_sdp_choice", "_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    *("cudnn", "_cudnn", "miopen", "_thnn", "_scaled_mm", "copy_", "narrow_copy", "_aminmax"),
)
"""Beginnings of the names of operators without a kernel of this kind: they compute nothing, or have one below."""
WITHOUT_CUDA_KEY = ("aten::convolution", "aten::convolution_backward")
"""Operators that choose between libraries by themselves."""
WAITING = {"nonzero", "equal", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
"""Operators whose CUDA kernels wait for the device."""
MATRIX = {"mm", "addmm", "bmm", "baddbmm", "addmv", "_addmm_activation", "dot", "_int_mm"}
"""Operators that take a workspace of cuBLAS."""
DRAWING = {"native_dropout", "bernoulli", "rrelu_with_noise"}
"""Operators that draw numbers, though they take no generator."""


def on_host(value):
    """Make a CPU tensor of the same memory."""
    if not isinstance(value, Tensor) or value.device.type != "cuda":
        return value
    storage = value.untyped_storage()
    if storage.nbytes() == 0 or storage.data_ptr() == 0:
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype)
    memory = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), CPU, storage.nbytes())
    return torch.empty(0, dtype=value.dtype).set_(memory, value.storage_offset(), value.size(), value.stride())


def to_host(value):
    """Turn an argument of a CUDA kernel into that of the CPU's."""
    if isinstance(value, torch.device):
        return CPU if value.type == "cuda" else value
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(to_host(one) for one in value)
    return on_host(value)


def to_device(value):
    """Turn a result of a CPU kernel into one of the caching allocator's memory."""
    if isinstance(value, list | tuple):
        return type(value)(to_device(one) for one in value)
    if not isinstance(value, Tensor) or value.device.type != "cpu":
        return value
    result = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=CUDA)
    if value.numel():
        on_host(result).copy_(value)
    return result


def wait():
    """Wait for the device as torch does, which says so in its debug mode."""
    torch.cuda.current_stream().synchronize()


@contextmanager
def drawing(values):
    """Let the CPU's generator draw what follows from the seed and the offset of the CUDA generator among `values`."""
    torch.cuda.init()
    given = next((one for one in values if isinstance(one, torch.Generator) and one.device.type == "cuda"), None)
    generator = torch.cuda.default_generators[0] if given is None else given
    offset, before = generator.get_offset(), torch.default_generator.get_state()
    text = f"{generator.initial_seed()}:{offset}".encode()
    torch.default_generator.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little"))
    generator.set_offset(offset + 4)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def in_tf32(name):
    """Return True if torch's switches make an operator compute float32 in TF32."""
    if name in MATRIX:
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
    return name.startswith("convolution") and torch.backends.cudnn.conv.fp32_precision == "tf32"


def rounded_to_tf32(value):
    """Round a float32 matrix to 10 bits behind the point, to the nearest."""
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.dim() < 2:
        return value
    value = on_host(value).contiguous().clone()
    value.view(torch.int32).add_(0x1000).bitwise_and_(~0x1FFF)
    return value


class HostKernel:
    """A kernel for CUDA tensors of one overload of an operator."""

    def __init__(self, operator):
        self._operator, schema = operator, operator._schema
        self._name = schema.name.removeprefix("aten::")
        self._arguments, self._has_result = schema.arguments, bool(schema.returns)
        self._written = [i for i, one in enumerate(schema.arguments) if one.alias_info and one.alias_info.is_write]
        place = {frozenset(schema.arguments[i].alias_info.before_set): n for n, i in enumerate(self._written)}
        returned = [one.alias_info if one.alias_info and one.alias_info.is_write else None for one in schema.returns]
        self._returned = [None if one is None else place[frozenset(one.before_set)] for one in returned]
        """For each result the number of the argument, among those that are written to, that it is."""
        self._is_out = bool(self._written) and all(schema.arguments[i].is_out for i in self._written)
        self._draws = self._name in DRAWING or any("Generator" in str(one.type) for one in schema.arguments)

    def __call__(self, *args, **kwargs):
        with torch.inference_mode(False), torch._C._AutoDispatchBelowAutograd():
            return self._compute(args, kwargs)

    def _compute(self, args, kwargs):
        if self._name in MATRIX:
            torch._C._cuda_getCurrentBlasHandle()
        if in_tf32(self._name):
            args = tuple(map(rounded_to_tf32, args))
        written = [self._argument(i, args, kwargs) for i in self._written]
        host_args, host_kwargs = to_host(args), {key: to_host(value) for key, value in kwargs.items()}
        if host_kwargs.get("pin_memory"):
            host_kwargs["pin_memory"] = False
        drawn = drawing([*args, *kwargs.values()]) if self._draws else nullcontext()
        if self._is_out:
            with drawn:
                return self._write(written, host_args, host_kwargs)
        with drawn:
            result = self._call(host_args, host_kwargs)
        if self._name in WAITING:
            wait()
        if not self._has_result:
            return None
        if len(self._returned) == 1:
            (of,) = self._returned
            return to_device(result) if of is None else written[of]
        pairs = zip(self._returned, result, strict=True)
        return tuple(to_device(one) if of is None else written[of] for of, one in pairs)

    def _argument(self, number, args, kwargs):
        argument = self._arguments[number]
        return kwargs.get(argument.name) if argument.kwarg_only or number >= len(args) else args[number]

    def _call(self, args, kwargs):
        is_matrix = self._name in MATRIX or self._name.startswith("convolution")
        tensors = [one for one in args if isinstance(one, Tensor)]
        if is_matrix and not self._written and tensors and all(one.dtype == torch.float16 for one in tensors):
            # Most CPUs take minutes for float16.
            result = self._operator(*(one.float() if isinstance(one, Tensor) else one for one in args), **kwargs)
            return tree_map(lambda one: one.half() if isinstance(one, Tensor) else one, result)
        # A number in place of a tensor is one that Python's operators were given, which another overload takes.
        given = [*zip(self._arguments, args, strict=False), *((self._named(key), one) for key, one in kwargs.items())]
        has_numbers = any(str(of.type) == "Tensor" and isinstance(one, int | float | complex) for of, one in given)
        return (self._operator.overloadpacket if has_numbers else self._operator)(*args, **kwargs)

    def _named(self, name):
        return next(one for one in self._arguments if one.name == name)

    def _write(self, written, args, kwargs):
        """Compute into new tensors of the host, and copy them to those that are written to, at their size."""
        new = [torch.empty(0, dtype=to.dtype) if isinstance(to, Tensor) else to_host(to) for to in written]
        kwargs |= {self._arguments[i].name: one for i, one in zip(self._written, new, strict=True)}
        self._call(args, kwargs)
        for to, result in zip(written, new, strict=True):
            if isinstance(to, Tensor):
                if to.size() != result.size():
                    to.resize_(result.size())
                if result.numel():
                    on_host(to).copy_(result)
        if not self._has_result:
            return None
        return written[0] if len(written) == 1 else tuple(written)


def copy_(to, source, non_blocking=False):
    """Copy between the devices, or to another dtype or layout."""
    if to.numel():
        with torch._C._AutoDispatchBelowAutograd():
            if to.device.type != source.device.type and not non_blocking:
                wait()
            on_host(to).copy_(on_host(source))
    return to


def _has_a_host_kernel(name):
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)


def _overload(name):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(aten, packet), overload or "default", None)


def install():
    """Register all kernels."""
    import library_kernels

    library = torch.library.Library("aten", "IMPL")
    names = {*torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"), *WITHOUT_CUDA_KEY}
    for name in sorted(one for one in names if one.startswith("aten::")):
        operator = None if name.removeprefix("aten::").startswith(LEFT_TO_TORCH) else _overload(name)
        if operator is None or not _has_a_host_kernel(name):
            continue
        if not any(one.alias_info and not one.alias_info.is_write for one in operator._schema.returns):  # a view
            library.impl(operator, HostKernel(operator), "CUDA", allow_override=True)
    library.impl("copy_", copy_, "CUDA", allow_override=True)
    for name, kernel in library_kernels.KERNELS.items():
        library.impl(name, kernel, "CUDA", allow_override=True)
    torch._TorchCompileInductorWrapper.__call__ = library_kernels.compile_eagerly
    return library


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns of each kernel that is replaced
    _LIBRARY = install()
