"""The tensors of a checkpoint by name: those of the model, and those that optimizers keep for its parameters."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ampsweep.training.checkpoint import Checkpoint

Put = Callable[[str, str, Tensor], Tensor]


def with_tensors(checkpoint: Checkpoint, put: Put) -> Checkpoint:
    """Return the checkpoint with `put(name, owner, tensor)` in place of each tensor.

    Names are like `model.0.weight` and `optimizers.optimizer.0.weight.exp_avg`; the owner of both is `0.weight`. What
    an optimizer keeps otherwise, in its groups or for all parameters, stays as it is.
    """
    model = copy.copy(checkpoint.model)  # of its own class, with the versions of its modules
    for key, value in checkpoint.model.items():
        model[key] = _mapped(value, f"model.{key}", key, put)
    optimizers = {name: one | {"state": _of_optimizer(name, one, put)} for name, one in checkpoint.optimizers.items()}
    return replace(checkpoint, model=model, optimizers=optimizers)


def _of_optimizer(name: str, optimizer: Mapping[str, Any], put: Put) -> dict[str, Any]:
    state: dict[str, Any] = optimizer["state"]
    ids = [one for group in state["param_groups"] for one in group["params"]]
    of_parameters = dict(state["state"])
    for one, parameter in zip(ids, optimizer["parameters"], strict=True):
        if one in of_parameters:
            of_parameters[one] = _mapped(of_parameters[one], f"optimizers.{name}.{parameter}", parameter, put)
    return state | {"state": of_parameters}


def _mapped(value: Any, name: str, owner: str, put: Put) -> Any:
    if isinstance(value, Tensor):
        return put(name, owner, value)
    if isinstance(value, dict):
        return {key: _mapped(one, f"{name}.{key}", owner, put) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(one, f"{name}.{number}", owner, put) for number, one in enumerate(value))
    return value
