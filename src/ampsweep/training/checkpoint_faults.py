"""Faults of a checkpoint that can be read: parts that no training could have saved."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_MAX: Final = 2**53
_COUNTS: Final = ("step", "next_batch", "applied_steps")
_TEXTS: Final = ("config_hash", "model_name", "arm", "optimizer_class")
_MAPPINGS: Final = ("model", "optimizer", "scaler", "scale_monitor", "rng")
_OF_PARAMETER_SIZE: Final = ("exp_avg", "exp_avg_sq", "momentum_buffer")


def fault_of(content: Mapping[str, Any]) -> str | None:
    """Find the first part of a checkpoint's content that no training could have saved; a clause, or None.

    Nothing is loaded into a model, an optimizer or the process's generators.
    """
    return next(_faults(content), None)


def fault_for(content: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> str | None:
    """Find why the optimizer's state, sound in itself, is not that of parameters of these shapes; a clause, or None."""
    ids = [one for group in content["param_groups"] for one in group["params"]]
    if len(ids) != len(shapes):
        return f"its optimizer has {len(ids)} parameters, the model {len(shapes)} to train"
    for one, shape in zip(ids, shapes, strict=True):
        for name, value in content["state"].get(one, {}).items():
            if name in _OF_PARAMETER_SIZE and isinstance(value, Tensor) and tuple(value.shape) != shape:
                return f"its optimizer's {name} has shape {tuple(value.shape)}, its parameter {shape}"
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
    yield from _of_optimizer(content)
    yield from _of_scaler(content)
    yield from _of_generators(content["rng"])


def _of_optimizer(content: Mapping[str, Any]) -> Iterator[str]:
    optimizer = content["optimizer"]
    state, groups = optimizer.get("state"), optimizer.get("param_groups")
    if not isinstance(state, dict) or not isinstance(groups, list) or not groups:
        yield "its optimizer has no state or no parameters"
        return
    ids = [group["params"] for group in groups if isinstance(group, dict) and isinstance(group.get("params"), list)]
    if len(ids) < len(groups):
        yield "its optimizer has a group without parameters"
        return
    known = {one for group in ids for one in group if type(one) is int}
    if not all(one in known and isinstance(of, dict) for one, of in state.items()):
        yield "its optimizer has a state of no parameter"
    keeps_none = content["optimizer_class"] == "SGD" and not any(group.get("momentum") for group in groups)
    if content["applied_steps"] and not state and not keeps_none:
        yield f"its {content['optimizer_class']} has no state after {content['applied_steps']} applied steps"


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
