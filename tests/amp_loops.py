"""The step of a mixed-precision training as anyone writes it by hand from torch's own parts, on the CPU."""

import torch
import torch.nn.functional as F
from torch import nn


def amp_step(model, optimizer, scaler, batches, *, num_batches=1, loss_fn=F.mse_loss, dtype=None, max_norm=None):
    """One optimizer step over `num_batches` micro-batches; autocast to `dtype`, None for none.

    Returns the detached losses of the micro-batches, each already divided by their number, and the gradients' norm
    before clipping as a float (None without `max_norm`). Apart from its arguments and batches nothing is kept alive.
    """
    losses, norm = [], None
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = loss_fn(model(inputs), targets) / num_batches
        scaler.scale(loss).backward()
        losses.append(loss.detach())
    if max_norm is not None:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm).item()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return losses, norm
