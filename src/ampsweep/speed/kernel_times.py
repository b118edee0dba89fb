"""How long kernels take on a device, from what they compute and move and a few fitted parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ampsweep.observe.operator_work import OperatorWork
from ampsweep.speed.devices import Device

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

_TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64))
_SPLITS: Final = (1, 2, 4, 8, 16)
"""Sizes of the output that a multiprocessor computes at a time, and pieces that the inner dimension is cut into: those
of cuBLAS and CUTLASS."""
_ITEMSIZE: Final = {"float16": 2.0, "bfloat16": 2.0, "float8_e4m3fn": 1.0, "float8_e5m2": 1.0}  # else 4
_LOWEST_CLOCK: Final = 0.4  # of the boost clock


@dataclass(frozen=True)
class Parameters:
    """What no data sheet says; shares are of the data sheet's rates."""

    watts: Mapping[str, float]
    """Power in W that a multiprocessor takes per GHz in matrix arithmetic, by chip: above the device's limit the clock
    falls."""
    tensor_share: Mapping[str, float]  # of the tensor cores' peak, within a tile; by chip
    float32_share: float  # of the peak without tensor cores, within a tile
    convolution_share: Mapping[str, float]
    """Of a product's rate without tensor cores: `half`, `float32`, `float32 3x3`, where Winograd's algorithm saves
    operations, and `float32 9.0`, of all sizes on Hopper and later."""
    convolution_reading: Mapping[str, float]
    """Of the rate at which a product on tensor cores reads its operands: `half` precision channels last, `half channels
    first`, `tf32`."""
    grouped_share: Mapping[str, float]  # of a product's rate, for convolutions in groups: the same names, and `float32`
    overlap: float
    """Exponent p of (a^p + b^p)^(1/p), the time of a product from its arithmetic a and its memory b."""
    misaligned_share: float  # of a product's rate, for rows that are no multiple of 16 bytes on tensor cores
    attention_share: float  # of the peak, for fused attention
    tile_us: float  # the least time of a tile
    tile_bytes_per_clock: float  # that a multiprocessor reads from L2
    bandwidth_share: float  # of the memory's bandwidth
    l2_speed: float  # bandwidth of L2 over that of the memory
    strided_share: float  # of the bandwidth, where tensors differ in memory order
    elements_per_clock: Mapping[str, float]
    """Elements that a multiprocessor takes in a clock, by kind of work; other kinds are as `elementwise`."""
    kernel_us: float  # the least time of a kernel
    forward_us: float  # of the host, for an operator in forward
    backward_us: float  # of the host, for an operator in backward and in the update
    compiled_us: float  # of the host, for a compiled kernel
    step_us: float  # of the host, for a step of this suite
    others_step_us: float  # of the host, for a step of the loops whose speeds were published


def chip(device: Device) -> str:
    """The kind of chip, by its compute capability."""
    return "{}.{}".format(*device.capability)


class Works:
    """Work as columns."""

    def __init__(self, works: Sequence[OperatorWork]) -> None:
        def column(name: str) -> Any:
            return np.array([getattr(work, name) for work in works])

        self.kinds, self.dtypes, self.is_strided = column("kind"), column("dtype"), column("is_strided")
        self.flops, self.num_elements = column("flops").astype(float), column("num_elements").astype(float)
        self.num_bytes = column("read_bytes").astype(float) + column("written_bytes")
        self.num_kernels, self.taps = column("num_kernels").astype(float), column("taps")
        self.sizes = np.array([work.sizes or (1, 1, 1, 1) for work in works], dtype=float).reshape(-1, 4)
        self.itemsize = np.array([_ITEMSIZE.get(dtype, 4.0) for dtype in self.dtypes])


def kernel_times(works: Works, device: Device, parameters: Parameters, *, tf32: bool) -> Floats:
    """The time on the device of each work in microseconds; `tf32`: float32 products may use TF32."""
    return _KernelModel(works, device, parameters, tf32).times()


def least_times(works: Works, device: Device, parameters: Parameters, *, tf32: bool) -> Floats:
    """The least time on the device of each work, in microseconds: its arithmetic at the peak, or its bytes at the
    bandwidth of memory and L2, whichever takes longer (Williams et al., "Roofline", CACM 52:4, 2009)."""
    whole = replace(parameters, bandwidth_share=1.0, strided_share=1.0)
    return _KernelModel(works, device, whole, tf32).least()


class _KernelModel:
    def __init__(self, works: Works, device: Device, parameters: Parameters, tf32: bool) -> None:
        self._works, self._device, self._parameters = works, device, parameters
        self._bytes_per_us = 1e3 * device.bandwidth_gb_per_sec * parameters.bandwidth_share
        self._is_half = works.itemsize < 4
        has_tensor_cores = device.capability >= (7, 0)
        self._on_tensor_cores = has_tensor_cores & (self._is_half | (tf32 and device.tf32 is not None))
        of_float32 = (device.tf32 if tf32 else None) or device.float32
        lower = [device.tflops_per_sec(dtype) or of_float32 for dtype in _ITEMSIZE]
        peak = np.select([works.dtypes == dtype for dtype in _ITEMSIZE], lower, of_float32)
        self._peak_per_clock = peak * 1e3 / (device.num_sms * device.boost_ghz)  # FLOPs of a multiprocessor
        drawn_w = parameters.watts[chip(device)] * device.num_sms * device.boost_ghz
        self._ghz = device.boost_ghz * min(1.0, max(_LOWEST_CLOCK, device.tdp_w / drawn_w))

    def times(self) -> Floats:
        works, parameters = self._works, self._parameters
        moving = self._moving()
        times = np.maximum(moving, self._elementwise())
        is_grouped = (works.kinds == "convolution") & (works.sizes[:, 0] > 1)
        is_product = ((works.kinds == "product") | (works.kinds == "convolution")) & ~is_grouped
        if is_product.any():
            power = parameters.overlap
            times[is_product] = (self._products(is_product) ** power + moving[is_product] ** power) ** (1 / power)
        shares = ((is_grouped, self._share()), (works.kinds == "attention", parameters.attention_share))
        for chosen, share in shares:
            peak = self._peak_per_clock * self._ghz * 1e3 * self._device.num_sms
            times[chosen] = np.maximum(works.flops / (peak * share), times)[chosen]
        return np.where(works.num_kernels > 0, times + parameters.kernel_us * works.num_kernels, 0.0)

    def least(self) -> Floats:
        peak = self._peak_per_clock * self._device.boost_ghz * 1e3 * self._device.num_sms
        times = np.maximum(self._works.flops / peak, self._moving())
        return np.where(self._works.num_kernels > 0, times, 0.0)

    def _moving(self) -> Floats:
        """The time to move the bytes: from L2 as far as it holds them."""
        works, parameters = self._works, self._parameters
        in_l2 = np.clip(1 - works.num_bytes / (self._device.l2_mib * 2**20), 0, 1)
        speed = self._bytes_per_us * (1 + (parameters.l2_speed - 1) * in_l2)
        is_slow = works.is_strided & (works.kinds != "convolution")
        times: Floats = works.num_bytes / np.where(is_slow, speed * parameters.strided_share, speed)
        return times

    def _elementwise(self) -> Floats:
        """The time that the elements take, whatever their size."""
        works, parameters = self._works, self._parameters
        rates = parameters.elements_per_clock
        rate = np.select([works.kinds == kind for kind in rates], [*rates.values()], rates["elementwise"])
        is_torchs = (works.kinds == "batch_norm") & (works.dtypes == "bfloat16")  # not cuDNN's
        rate = np.where(is_torchs, rates["batch_norm bfloat16"], rate)
        is_matrix = np.isin(works.kinds, ("product", "convolution", "attention"))
        clocks = self._device.num_sms * self._device.boost_ghz * 1e3
        return np.where(is_matrix, 0.0, works.num_elements / (rate * clocks))

    def _products(self, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
        """The time of matrix products by the best of the tiles and splits."""
        works, parameters, device = self._works, self._parameters, self._device
        batch, m, n, k = (column[:, None, None] for column in works.sizes[chosen].T)
        tile_m, tile_n = (np.array(side, dtype=float)[None, :, None] for side in zip(*_TILES, strict=True))
        split = np.array(_SPLITS, dtype=float)[None, None, :]
        depth = np.ceil(k / split)
        waves = np.ceil(batch * np.ceil(m / tile_m) * np.ceil(n / tile_n) * split / device.num_sms)
        per_us = (self._peak_per_clock * self._share() * self._ghz * 1e3)[chosen][:, None, None]
        # An implicit product reads an input for each tap of the kernel.
        reading = np.where(works.kinds == "convolution", self._by_layout(parameters.convolution_reading, 1.0), 1.0)
        l2_per_us = (reading * parameters.tile_bytes_per_clock * self._ghz * 1e3)[chosen][:, None, None]
        itemsize = works.itemsize[chosen][:, None, None]
        computing = 2 * tile_m * tile_n * depth / per_us
        loading = (tile_m + tile_n) * depth * itemsize / l2_per_us
        joining = np.where(split > 1, 8 * split * batch * m * n / self._bytes_per_us + parameters.kernel_us, 0)
        tiles = waves * np.maximum(np.maximum(computing, loading), parameters.tile_us) + joining
        # cuDNN's convolutions on tensor cores take channels last, so that it transposes others.
        is_transposed = (works.kinds == "convolution") & works.is_strided & self._on_tensor_cores
        transposing = is_transposed * 2 * works.num_bytes / self._bytes_per_us
        times: Floats = tiles.min(axis=(1, 2)) + transposing[chosen]
        return times

    def _share(self) -> Floats:
        """The share of the peak that products reach within a tile."""
        works, parameters = self._works, self._parameters
        share = np.where(self._on_tensor_cores, parameters.tensor_share[chip(self._device)], parameters.float32_share)
        rows = works.sizes[:, 2:] * works.itemsize[:, None] % 16
        is_misaligned = (works.kinds == "product") & self._on_tensor_cores & rows.any(axis=1)
        share = np.where(is_misaligned, share * parameters.misaligned_share, share)
        plain = parameters.convolution_share
        of_float32 = np.where(works.taps == 9, plain["float32 3x3"], plain["float32"])
        if self._device.capability >= (9, 0):
            of_float32 = np.full_like(of_float32, plain["float32 9.0"])
        of_plain = np.where(self._is_half, plain["half"], of_float32)
        of_convolution = np.where(self._on_tensor_cores, 1.0, of_plain)
        of_groups = self._by_layout(parameters.grouped_share, parameters.grouped_share["float32"])
        of_convolution = np.where(works.sizes[:, 0] > 1, of_groups, of_convolution)
        return np.where(works.kinds == "convolution", share * of_convolution, share)

    def _by_layout(self, figures: Mapping[str, float], without_tensor_cores: float) -> Floats:
        of_half = np.where(self._works.is_strided, figures["half channels first"], figures["half"])
        on_tensor_cores = np.where(self._is_half, of_half, figures["tf32"])
        return np.where(self._on_tensor_cores, on_tensor_cores, without_tensor_cores)
