"""Faults of a checkpoint that can be read: parts that no training could have saved."""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ampsweep.training.packed_states import fault_of_parts

_MAX: Final = 2**53
_COUNTS: Final = ("step", "next_batch", "applied_steps")
_TEXTS: Final = ("config_hash", "model_name", "arm")
_MAPPINGS: Final = ("model", "scaler", "scale_monitor", "rng", "data", "observed")
_OF_PARAMETER_SIZE: Final = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""Names of states that have their parameter's shape in each of torch's own optimizers."""


def fault_of(content: Mapping[str, Any]) -> str | None:
    """Find the first part of a checkpoint's content that no training could have saved; a clause, or None.

    Nothing is loaded into a model, an optimizer or the process's generators.
    """
    return next(_faults(content), None)


def fault_for(optimizers: Mapping[str, Mapping[str, Any]], shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Find why the optimizers' states, sound in themselves, are not those of these parameters; a clause, or None.

    Args:
        optimizers: `Checkpoint.optimizers`.
        shapes: of the parameters to train, by name, in the model's order.
    """
    names: dict[str, list[str]] = {name: one["parameters"] for name, one in optimizers.items()}
    if len(known := [name for one in names.values() for name in one]) != len(shapes):
        return f"its optimizer has {len(known)} parameters, the model {len(shapes)} to train"
    for name in known:
        if name not in shapes:
            return f"its optimizer has the parameter {name}, which the model does not train"
    for name, one in optimizers.items():
        ids = [one for group in one["state"]["param_groups"] for one in group["params"]]
        for number, parameter in zip(ids, names[name], strict=True):
            for key, value in one["state"]["state"].get(number, {}).items():
                shape = shapes[parameter]
                if (fault := fault_of_parts(value, shape)) is not None:
                    return f"its optimizer's {key} of {parameter} {fault}"
                is_known = key in _OF_PARAMETER_SIZE and _is_torchs(one["class"])
                if is_known and isinstance(value, Tensor) and tuple(value.shape) != shape:
                    return f"its optimizer's {key} has shape {tuple(value.shape)}, its parameter {shape}"
    return None


def _faults(content: Mapping[str, Any]) -> Iterator[str]:
    for key in _COUNTS:
        if not _is_count(content[key]):
            yield f"its {key} is {_shown(content[key])}, not a count"
    for key in _TEXTS:
        if not isinstance(content[key], str):
            yield f"its {key} is {_shown(content[key])}, not a text"
    for key in _MAPPINGS:
        if not isinstance(content[key], dict):
            yield f"its {key} is {_shown(content[key])}, not a mapping"
    if content["applied_steps"] > content["step"]:
        yield f"its {content['step']} steps are fewer than the {content['applied_steps']} applied ones"
    if not content["optimizers"] or not isinstance(content["optimizers"], dict):
        yield "it has no optimizer"
        return
    for optimizer in content["optimizers"].values():
        yield from _of_optimizer(optimizer, content["applied_steps"])
    yield from _of_scaler(content)
    yield from _of_generators(content["rng"])


def _of_optimizer(saved: Any, applied_steps: int) -> Iterator[str]:
    optimizer = saved.get("state") if isinstance(saved, dict) else None
    if not isinstance(optimizer, dict) or not isinstance(saved.get("class"), str):
        yield "its optimizer has no class or no state"
        return
    state, groups, kind = optimizer.get("state"), optimizer.get("param_groups"), saved["class"]
    if not isinstance(state, dict) or not isinstance(groups, list) or not groups:
        yield "its optimizer has no state or no parameters"
        return
    ids = [group["params"] for group in groups if isinstance(group, dict) and isinstance(group.get("params"), list)]
    if len(ids) < len(groups):
        yield "its optimizer has a group without parameters"
        return
    names = saved.get("parameters")
    if not isinstance(names, list) or len(names) != sum(map(len, ids)):
        yield "its optimizer has not as many parameters as names"
        return
    known = {one for group in ids for one in group if type(one) is int}
    if not all(isinstance(one, str) or (one in known and isinstance(of, dict)) for one, of in state.items()):
        yield "its optimizer has a state of no parameter"
    may_keep_none = not _is_torchs(kind) or (kind == "SGD" and not any(group.get("momentum") for group in groups))
    if applied_steps and not state and not may_keep_none:
        yield f"its {kind} has no state after {applied_steps} applied steps"


def _is_torchs(kind: str) -> bool:
    """Tell whether an optimizer's class is torch's own, which has no module before its name."""
    return "." not in kind


def _of_scaler(content: Mapping[str, Any]) -> Iterator[str]:
    scaler, counts = content["scaler"], content["scale_monitor"]
    if scaler:
        scale = scaler.get("scale")
        if type(scale) not in (int, float) or not 0 <= scale < math.inf:
            yield f"its scale is {_shown(scale)}, not a number"
        if not _is_count(scaler.get("_growth_tracker")):
            yield f"its growth tracker is {_shown(scaler.get('_growth_tracker'))}, not a count"
    for key in ("num_observed", "skipped_steps", "growth_tracker") if counts else ():
        if not _is_count(counts.get(key)):
            yield f"its {key} is {_shown(counts.get(key))}, not a count"


def _of_generators(state: Mapping[str, Any]) -> Iterator[str]:
    """Try the states of the generators on others, which nobody draws from."""
    try:
        version, internal, gauss = state["python"]
        random.Random().setstate((version, tuple(internal), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.RandomState().set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
        torch.Generator().set_state(state["torch"])
        if not all(state[name].dtype == torch.uint8 for name in ("cuda", "mps") if name in state):
            yield "its states of the device's random number generator are none"
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OverflowError):
        yield "its states of the random number generators are none"


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, int | float | str | type(None)) else type(value).__name__
    return shown if len(shown) <= 40 else f"{shown[:39]}…"
