"""The facts of a training that is not the suite's, as its record has them."""

import json
import os
import secrets
import socket
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ampsweep import __version__
from ampsweep.config.claims import ANY_HALF
from ampsweep.config.identity import digest_of_values
from ampsweep.integrations.observed_precision import ObservedPrecision, label, recorded_dtypes
from ampsweep.monitors.environment import device_name, environment
from ampsweep.records import Identity, RunRecord, now
from ampsweep.records.run_record import Source
from ampsweep.records.sections import Attempt
from ampsweep.text import folder_name
from ampsweep.user_code import own_code

_STRATEGIES: Final = {
    "DistributedDataParallel": "ddp",
    "FullyShardedDataParallel": "fsdp",
    "DeepSpeedEngine": "deepspeed",
}
"""What ranks share the work by, by the class around the model."""


def new_record(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    precision: ObservedPrecision,
    *,
    source: Source,
    experiment: str,
    arm: str | None,
    seed: int,
    config: object,
) -> RunRecord:
    """The record of a training that begins; its arm is `unknown` until one is given or proved."""
    device, claimed, own, world_size = precision.device, precision.claimed, as_settings(config), rank_and_size()[1]
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    facts = [source, experiment, shapes, device_name(device), world_size, seed, __version__]
    rate = optimizers[0].param_groups[0].get("initial_lr", optimizers[0].param_groups[0].get("lr"))
    identity = Identity(
        experiment=experiment,
        precision_mode="unknown" if claimed is None else claimed.mode,
        dtype=None,
        model=_name(model),
        model_size=sum(parameter.numel() for parameter in model.parameters()),
        optimizer=", ".join(type(optimizer).__name__ for optimizer in optimizers),
        lr=None if rate is None else float(rate),
        compile=is_compiled(model),
        seed=seed,
        device=str(device),
        device_name=device_name(device),
        world_size=world_size,
        parallel="single" if world_size == 1 else _strategy(model),
    )
    code = {"code_version": __version__, "own_code": own_code({"_target_": "__main__"})}
    return RunRecord(
        run_id=secrets.token_hex(4),
        source=source,
        arm=arm or "unknown",
        pair_key=digest_of_values(facts),
        config_hash=digest_of_values([facts, arm, own]),
        identity=identity,
        config={"own": own} | ({} if claimed is None else {"precision": asdict(precision.config)}),
        environment={**code, **environment(device)},
        started_at=now(),
        attempts=[Attempt(started_at=now(), host=socket.gethostname(), pid=os.getpid(), from_step=0)],
    )


def add_proved(
    record: RunRecord,
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    precision: ObservedPrecision,
    words: str | None,
) -> None:
    """Add what the traced step proved: the dtypes, the mode in place of `words` for any half precision, and the arm."""
    record.dtypes = recorded_dtypes(model, optimizers, record.proof)
    record.identity.dtype = record.dtypes.compute
    if (proved := precision.proved(record.proof, record.dtypes)) is None:
        return
    if record.arm == "unknown":
        record.arm = label(proved)
    if precision.claimed is None:
        record.identity.precision_mode = proved.mode
    elif proved.mode == "amp_bf16" and words in ANY_HALF:
        record.identity.precision_mode, record.config["precision"] = proved.mode, asdict(proved)


def make_directory(root: Path, record: RunRecord, arm: str | None) -> Path:
    """Make a directory for the run: a training that is recorded again is a repeat, and may begin at the same time.

    Where none can be made, the path alone is returned, and the record's beginning fails.
    """
    name = f"{record.identity.model}-s{record.identity.seed}-{record.config_hash[:8]}"
    place = first = root / folder_name(name if arm is None else f"{arm}-{name}")
    number = 1
    while True:
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            number += 1
            place = root / f"{first.name}-{number}"
        except OSError:
            return place
        return place


def as_settings(config: object) -> dict[str, Any]:
    """A mapping, namespace or dataclass as plain values for JSON; what JSON cannot hold is written as text."""
    if is_dataclass(config) and not isinstance(config, type):
        config = {name: getattr(config, name) for name in config.__dataclass_fields__}
    elif isinstance(config, Namespace):
        config = vars(config)
    elif not isinstance(config, Mapping):
        config = {} if config is None else getattr(config, "__dict__", {"config": config})
    plain: dict[str, Any] = json.loads(json.dumps({str(key): config[key] for key in config}, default=str))
    return plain


def script_name() -> str:
    script = Path(sys.argv[0] if sys.argv else "")
    name = script.parent.name if script.stem == "__main__" else script.stem  # of `python -m package`
    return name if name not in ("", "-", "-c") else "training"


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def is_compiled(model: nn.Module) -> bool:
    # `torch.compile(model)` wraps it and keeps the original under this name; `model.compile()` sets the other.
    return any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())


def _strategy(model: nn.Module) -> str:
    names = [type(module).__name__ for module in model.modules()]
    if any(name.startswith("FSDP") for name in names):  # FSDP2 gives a model a class of its own, such as `FSDPNet`
        return "fsdp2"
    return next((_STRATEGIES[name] for name in names if name in _STRATEGIES), names[0])


def _name(model: nn.Module) -> str:
    """The class of the model; of several that are trained together, those of all."""
    parts = model.children() if type(model) is nn.ModuleList else [model]
    return "+".join(type(_unwrapped(part)).__name__ for part in parts)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model within the wrappers of torch.compile, DataParallel, DistributedDataParallel and Fabric."""
    own = model._modules
    names = ("_original_module",) if "_forward_module" in own else ("_orig_mod", "module") if len(own) == 1 else ()
    inner = next((own[name] for name in names if own.get(name) is not None), None)
    return model if inner is None else _unwrapped(inner)
