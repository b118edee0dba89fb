"""Names of runs, and the hashes that tell whether two configs are the same run, a pair or one workload."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from ampsweep import __version__
from ampsweep.config.modes import (
    ARM_KEYS,
    arm_of,
    outside_differences,
    with_effect,
)
from ampsweep.config.schema import Config, component_name
from ampsweep.redaction import hide
from ampsweep.text import folder_name

# Where and how results are kept and shown changes no result.
_NOT_HASHED = ("name", "tracking", "report", "predict", "doctor", "numerics", "resume", "into", "dry_run", "output_dir")
# What is read decides, not where it lies: the fingerprint stands for it.
_LOCATIONS = ("path", "val_path")
_CADENCE = ("log_every", "checkpoint_every", "grace_seconds")


def resolved_values(config: Config) -> dict[str, Any]:
    """The config as plain values that JSON can hold."""
    return asdict(config)


def config_hash(config: Config) -> str:
    """Twelve hex digits that identify a finished point: equal if every setting that can change its result is equal.

    A run that goes on from a checkpoint of another is a point of its own.
    """
    begins = {"resume": config.resume} if config.begins_elsewhere else {}
    return _digest(_result_settings(config) | begins)


def training_hash(config: Config) -> str:
    """The hash of the config without the checkpoint that the run begins with."""
    return config_hash(replace(config, resume=None))


def workload_hash(config: Config) -> str:
    """Twelve hex digits, equal for configs that differ only in their arm."""
    return _digest(_without_arm(_result_settings(config)))


def pair_key(config: Config, *, device_name: str, world_size: int, data_fingerprint: str) -> str:
    """Twelve hex digits, equal for runs that differ only in their arm, on devices of one model and the same data.

    The package's version counts, not the state of its source: a comparison notes where that differs. A run that goes on
    from a checkpoint has the key of one that begins afresh.
    """
    settings = _without_arm(_result_settings(config))
    settings["data"] = _without(settings["data"], _LOCATIONS)
    del settings["device"]  # several may do, such as those of `auto`: the model of the one that was taken decides
    # The number of ranks decides, whether it was given or found.
    settings["parallel"] = _without(settings["parallel"], ("num_processes",))
    facts = [device_name, world_size, __version__, data_fingerprint]
    return _digest([settings, facts])


@cache
def code_version() -> str:
    """Package version and a digest of the package's source files: the same with and without git."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:8]}"


def run_directory_name(config: Config) -> str:
    """`<arm>-<model>-s<seed>-<config hash>`, safe as one folder name everywhere.

    After `resumed-` if the run goes on from another's checkpoint, so that patterns of `resume=ARM*` do not match it.
    """
    begins = "resumed-" if config.begins_elsewhere else ""
    readable = f"{begins}{arm_of(config)}-{component_name(config.model)}-s{config.seed}"
    readable = hide(readable, beside=resolved_values(config))
    return f"{folder_name(readable)}-{config_hash(config)[:8]}"


def _result_settings(config: Config) -> dict[str, Any]:
    settings = {key: value for key, value in resolved_values(config).items() if key not in _NOT_HASHED}
    settings["trainer"] = _without(settings["trainer"], _CADENCE)
    # Where they have no effect the baseline is the same run whatever they say.
    effective = with_effect(config.precision)
    settings["precision"] |= {"fp32_modules": effective.fp32_modules, "fp32_matmul": effective.fp32_matmul}
    settings["parallel"] = {} if config.parallel.strategy == "single" else settings["parallel"]
    changed = outside_differences(config)
    for group, keys in ARM_KEYS.items():  # what changes no dtype is the same run, whatever it says
        settings[group] = _without(settings[group], keys) | {key: changed[key] for key in keys if key in changed}
    if config.max_batch.search:  # the batch size is then a result; `data.batch_size` is where the search begins
        settings["data"] = _without(settings["data"], ("batch_size",))
    else:
        del settings["max_batch"]
    return settings


def _without_arm(settings: dict[str, Any]) -> dict[str, Any]:
    rest = _without(settings, ("precision",))
    return rest | {group: _without(rest[group], keys) for group, keys in ARM_KEYS.items() if group in rest}


def _without(values: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
