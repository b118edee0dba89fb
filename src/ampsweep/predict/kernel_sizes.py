"""Sizes of results and of scratch memory for kernels that differ from torch's fake tensors."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ampsweep.observe.step import Scratch
from ampsweep.predict.target_device import TargetDevice

aten = torch.ops.aten

Correction = Callable[[Any, Sequence[Any]], Any]
"""Maps a fake result and the operator's arguments to the result of the right size."""

_NORMS: Final = {aten.native_layer_norm: 2, aten.native_batch_norm: 1, aten.native_group_norm: 1}
"""Normalizations, with the position of the weight among their arguments."""
_LOSSES: Final = {aten.mse_loss: 2, aten.smooth_l1_loss: 2, aten.soft_margin_loss: 2, aten.binary_cross_entropy: 3}
"""Losses, with the position of the reduction."""
_PAGE, _LINE, _ALIASED = 4096, 64, 256
"""For oneDNN's LSTM: bytes of a page and of a cache line, and the row length whose multiples it avoids."""
_LOSSES_OF_FULL_SIZE: Final = (1, 12)  # since this torch a reduced loss keeps the storage of its unreduced values


def corrections(target: TargetDevice) -> dict[Any, Correction]:
    known = {norm: _statistics(position, target) for norm, position in _NORMS.items()}
    known[aten.native_layer_norm_backward] = _contiguous_gradient
    if target.torch_version >= _LOSSES_OF_FULL_SIZE:
        known |= {loss: _full_size(position) for loss, position in _LOSSES.items()}
    if target.kind == "cpu":
        return known | {
            aten.mkldnn_rnn_layer: _with_workspace,
            aten.mkldnn_rnn_layer_backward: _with_two_bias_gradients,
        }
    known[aten._scaled_dot_product_efficient_attention_backward] = _gradients_of_groups
    return known


def scratch_of(target: TargetDevice) -> Scratch:
    """The scratch bytes of the target's kernels while an operator runs; 0 if unknown."""
    formulas = dict(_SCRATCH)
    if target.temporary_workspaces is not None:
        product, with_bias = target.temporary_workspaces
        formulas |= {operator: lambda args: product for operator in (aten.mm, aten.bmm, aten.baddbmm)}
        formulas[aten.addmm] = lambda args: with_bias if args[0].dim() == 1 else product

    def scratch(operator: Any, args: Sequence[Any], result: Any) -> int:
        formula = formulas.get(operator)
        return 0 if formula is None else formula(args)

    return scratch


def _full_size(position: int) -> Correction:
    # A mean or sum keeps the resized storage of its unreduced values (ATen/native/Loss.cpp).
    def correct(result: Tensor, args: Sequence[Any]) -> Tensor:
        if len(args) <= position or args[position] != 0:
            result.untyped_storage().resize_(args[0].numel() * result.element_size())
        return result

    return correct


def _statistics(position: int, target: TargetDevice) -> Correction:
    # Mean and inverse deviation have the weight's dtype on the CPU (ATen/native/cpu/mixed_data_type.h), and that of
    # accumulation on CUDA (`acc_type`).
    def correct(result: Any, args: Sequence[Any]) -> Any:
        output, *statistics = result
        inputs, weight = args[0], args[position]
        dtype = inputs.dtype if weight is None else weight.dtype
        if target.kind == "cuda":
            dtype = torch.promote_types(inputs.dtype, torch.float32)
        return (output, *(each if each.dtype == dtype else each.to(dtype) for each in statistics))

    return correct


def _contiguous_gradient(result: Any, args: Sequence[Any]) -> Any:
    # The gradient of the input is contiguous even if the input is not (ATen/native/layer_norm.cpp, cuda alike).
    gradient, *others = result
    return (gradient if gradient is None else gradient.contiguous(), *others)


def _gradients_of_groups(result: Any, args: Sequence[Any]) -> Any:
    # The gradients of keys and values have as many heads as these; the fake ones have the query's.
    of_query, *gradients, of_bias = result
    pairs = zip(gradients, args[2:4], strict=True)
    right = [g if g is None or g.shape == of.shape else torch.empty_like(of) for g, of in pairs]
    return (of_query, *right, of_bias)


def _flash_backward(args: Sequence[Any]) -> int:
    # `dq_accum` and `softmax_d` of `mha_bwd` (flash_attn/flash_api.cpp), both float32.
    batch, heads, length, head = args[1].shape
    return int(4 * batch * heads * _up(length, 128) * (_up(head, 32 if head <= 128 else 64) + 1)) + _ungrouped(args)


def _efficient_backward(args: Sequence[Any]) -> int:
    # In float32 the product of output and its gradient, and its sums; in half precision an accumulator of the query's
    # gradient (transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h).
    batch, heads, length, head = args[1].shape
    return int(4 * batch * heads * _up(length, 64) * (head + 1)) + _ungrouped(args)


def _ungrouped(args: Sequence[Any]) -> int:
    # The gradients of keys and values for each head of the query, before those of a group are added (both files).
    query, key, value = args[1:4]
    heads, of_keys = query.shape[1], key.shape[1]
    return 0 if heads == of_keys else (key.numel() + value.numel()) // of_keys * heads * int(key.element_size())


def _loss(args: Sequence[Any]) -> int:
    # The unreduced losses, and the buffer and semaphores of the mean (native/cuda/Reduce.cuh).
    return int(args[0].numel() * args[0].element_size()) + 2 * 512


def _with_workspace(result: Any, args: Sequence[Any]) -> Any:
    """The results of the CPU's LSTM layer with oneDNN's workspace, most of an LSTM's memory, which fake tensors lack.
    LSTMs with projections, GRUs and plain RNNs are other operators."""
    if not torch.is_grad_enabled():  # without autograd there is no workspace
        return result
    output, hidden, cell, workspace = result
    inputs, cells = args[0], args[6]
    length, batch, width = inputs.shape
    size = workspace_bytes(length, batch, width, output.shape[-1], inputs.element_size(), cells.element_size())
    return output, hidden, cell, workspace.new_empty(size)


def _with_two_bias_gradients(result: Any, _args: Sequence[Any]) -> Any:
    # Each bias has its own gradient; on fake tensors the two are the same tensor.
    *others, bias, _, hidden, cell = result
    return (*others, bias, torch.empty_like(bias), hidden, cell)


def workspace_bytes(length: int, batch: int, width: int, hidden: int, itemsize: int, cell_itemsize: int) -> int:
    """Bytes of the workspace of a layer on inputs (length, batch, width) with a hidden state of `hidden` values. Gates,
    outputs, states and their gradients, each aligned to a page (`set_workspace_sizes` and `set_offsets` of oneDNN's
    cpu/rnn/rnn_utils, 3.12). States are kept for all steps and the previous one, and for the layer and the one below
    it."""
    num_gates, accumulated = 4, 4
    num_states = 2 * (length + 1) * batch
    widest = max(width, hidden)
    gradient = num_states * _row(widest, accumulated)
    of_gates, of_outputs = (length * batch * _row(values, itemsize) for values in (num_gates * hidden, hidden))
    of_states, of_cells = num_states * _row(widest, itemsize), num_states * hidden * cell_itemsize
    end = 0
    for size in (of_gates, of_outputs, of_states, of_cells, gradient, gradient, num_states * hidden * accumulated, 0):
        end = _up(end, _PAGE) + size
    return end


def _row(num_values: int, itemsize: int) -> int:
    per_line = _LINE // itemsize
    padded = _up(num_values, per_line)
    return itemsize * (padded + per_line if padded % _ALIASED == 0 else padded)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_SCRATCH: Final[dict[Any, Callable[[Sequence[Any]], int]]] = {
    aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
    aten.mse_loss: _loss,
    aten.smooth_l1_loss: _loss,
}
