"""Sizes of the CPU's LSTM layer, `aten::mkldnn_rnn_layer`: oneDNN's workspace, and its gradients.

torch gives the fake layer no workspace, though autograd saves it for backward, and it is most of what an LSTM keeps.
LSTMs with projections, GRUs and plain RNNs do not come here: torch computes them from operators of their own.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch

_PAGE: Final = 4096
_LINE: Final = 64
_ALIASED: Final = 256


def with_workspace(result: Any, args: Sequence[Any]) -> Any:
    """The layer's results with a workspace of the right size; it has one only while autograd records."""
    if not torch.is_grad_enabled():
        return result
    output, hidden, cell, workspace = result
    inputs, cells = args[0], args[6]
    length, batch, width = inputs.shape
    size = workspace_bytes(length, batch, width, output.shape[-1], inputs.element_size(), cells.element_size())
    return output, hidden, cell, workspace.new_empty(size)


def with_two_bias_gradients(result: Any, _args: Sequence[Any]) -> Any:
    """The gradients, with one of its own for either bias; on fake tensors the two are one tensor."""
    *others, bias, _, hidden, cell = result
    return (*others, bias, torch.empty_like(bias), hidden, cell)


def workspace_bytes(length: int, batch: int, width: int, hidden: int, itemsize: int, cell_itemsize: int) -> int:
    """Bytes of the workspace of a layer on inputs (length, batch, width) with a hidden state of `hidden` values.

    Gates, outputs, states and their gradients, each from a page of its own on (`set_workspace_sizes` and `set_offsets`
    of oneDNN's cpu/rnn/rnn_utils, 3.12). States are kept for all steps and the one before them, and for the layer and
    the one below it.
    """
    num_gates, accumulated = 4, 4
    num_states = 2 * (length + 1) * batch
    widest = max(width, hidden)
    gradient = num_states * _row(widest, accumulated)
    parts = (
        length * batch * _row(num_gates * hidden, itemsize),
        length * batch * _row(hidden, itemsize),
        num_states * _row(widest, itemsize),
        num_states * hidden * cell_itemsize,
        gradient,
        gradient,
        num_states * hidden * accumulated,
        0,
    )
    end = 0
    for part in parts:
        end = -(-end // _PAGE) * _PAGE + part
    return end


def _row(num_values: int, itemsize: int) -> int:
    """Bytes from one row of a matrix to the next (`get_good_ld`)."""
    per_line = _LINE // itemsize
    padded = -(-num_values // per_line) * per_line
    return itemsize * (padded + per_line if padded % _ALIASED == 0 else padded)
