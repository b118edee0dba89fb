"""Recurrent layers on CUDA: cuDNN computes all layers, directions and steps in one operator, `aten::_cudnn_rnn`."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor, nn

aten = torch.ops.aten

_MODES: Final = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's numbers of the kinds of layers (`cudnnRNNMode_t`)."""
_NUM_KEPT: Final = {0: 0, 1: 0, 2: 5, 3: 4}
"""Values kept for each value of a hidden state: four gates and the cell; three gates and a part of one. A plain RNN's
gradient follows from its output."""
_FLATTENED: Final = (torch.float16, torch.float32, torch.float64)
"""dtypes whose weights torch keeps in one piece (torch.backends.cudnn.is_acceptable)."""


def recurrent_kernels() -> Iterator[tuple[str, Any]]:
    """torch's recurrent operators by name, each with the kernel that stands for CUDA's."""
    for name, mode in _MODES.items():
        yield f"{name}.input", _lstm if name == "lstm" else _with_one_state(mode)


def flatten_weights(model: nn.Module) -> None:
    """Keep the weights of each recurrent layer in one storage, as `RNNBase.flatten_parameters` does on CUDA."""
    for layer in model.modules():
        weights = [*layer.parameters(recurse=False)] if isinstance(layer, nn.RNNBase) else []
        if weights and weights[0].dtype in _FLATTENED and len({weight.dtype for weight in weights}) == 1:
            flat = torch.empty(sum(weight.numel() for weight in weights), dtype=weights[0].dtype)
            for weight, view in zip(weights, _views(flat, weights), strict=True):
                weight.data = view


def with_reserve(result: Any, args: Sequence[Any]) -> Any:
    """The operator's results with the least reserve; it has one only in training.

    Only cuDNN knows its size. Counted are the gates and states without which there is no backward, so that the operator
    is one that a prediction does not vouch for.
    """
    output, hidden, cell, reserve, weights = result
    (mode, hidden_size, _, num_layers), train, is_bidirectional = args[6:10], args[12], args[13]
    if not train:
        return result
    num_directions = 2 if is_bidirectional else 1
    steps = output.numel() // output.shape[-1]
    kept = _NUM_KEPT[mode] * num_layers * hidden_size + (num_layers - 1) * (output.shape[-1] // num_directions)
    size = steps * num_directions * kept * output.element_size()
    return output, hidden, cell, reserve.new_empty(size), weights


def backward(args: Sequence[Any]) -> Any:
    """The results of `aten::_cudnn_rnn_backward`, which has no fake kernel: weights' gradients are parts of one."""
    inputs, weights, _, flat, hidden, cell = args[:6]
    gradients = [*_views(flat.new_empty(flat.shape), weights)]
    like = torch.empty_like
    return like(inputs), like(hidden), None if cell is None else like(cell), gradients


def scratch_bytes(args: Sequence[Any]) -> int:
    """Bytes of the inputs in cuDNN's order, by steps, where a batch comes by items."""
    inputs, batch_first = args[0], args[10]
    return int(inputs.numel() * inputs.element_size()) if batch_first else 0


def _lstm(inputs: Tensor, hidden: Sequence[Tensor], weights: list[Tensor], *settings: Any) -> Any:
    output, state, cell = _call(_MODES["lstm"], inputs, hidden[0], hidden[1], weights, *settings)
    return output, state, cell


def _with_one_state(mode: int) -> Any:
    def kernel(inputs: Tensor, hidden: Tensor, weights: list[Tensor], *settings: Any) -> Any:
        output, state, _ = _call(mode, inputs, hidden, None, weights, *settings)
        return output, state

    return kernel


def _call(
    mode: int,
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    weights: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call cuDNN's operator; under autocast on copies of the weights, in one piece too, made at each call."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else inputs.dtype
    size = sum(weight.numel() for weight in weights)
    if weights[0].dtype == dtype and weights[0].untyped_storage().nbytes() >= size * dtype.itemsize:
        flat = weights[0].detach().as_strided((size,), (1,), 0)
    else:
        flat = torch.empty(size, dtype=dtype)
    if weights[0].dtype != dtype:
        copies = [view.detach() for view in _views(flat, weights)]
        weights = [copy.copy_(weight) for copy, weight in zip(copies, weights, strict=True)]
    num_weights = (4 if has_biases else 2) + (cell is not None and cell.shape[2] != hidden.shape[2])
    states = [None if state is None else state.to(dtype) for state in (hidden, cell)]
    hidden_size = (hidden if cell is None else cell).shape[2]
    output, state, last_cell, _, _ = aten._cudnn_rnn(
        inputs.to(dtype), weights, num_weights, flat, *states, mode, hidden_size,
        0 if hidden.shape[2] == hidden_size else hidden.shape[2], num_layers, batch_first, dropout, train,
        bidirectional, [], None,
    )  # fmt: skip
    return output, state, last_cell


def _views(flat: Tensor, weights: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield consecutive parts of `flat` in the shapes of the weights."""
    sizes = [weight.numel() for weight in weights]
    for end, weight in zip(accumulate(sizes), weights, strict=True):
        yield flat[end - weight.numel() : end].view(weight.shape)
