"""Names of runs, and the hashes that tell whether two configs are the same run, a pair or one workload."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from ampsweep import __version__
from ampsweep.config.modes import (
    ARM_KEYS,
    EMULATED_CASTS,
    arm_of,
    emulates_casts,
    outside_differences,
    with_effect,
)
from ampsweep.config.schema import COMPONENTS, OPTIMIZERS, Config, component_name
from ampsweep.config.seam import saved_in
from ampsweep.redaction import hide
from ampsweep.text import folder_name

# Where and how results are kept and shown changes no result.
_NOT_HASHED = ("name", "tracking", "report", "predict", "doctor", "numerics", "resume", "into", "dry_run", "output_dir")
# What is read decides, not where it lies: the fingerprint stands for it.
_LOCATIONS = ("path", "val_path")
_CADENCE = ("log_every", "checkpoint_every", "memory_snapshot", "grace_seconds")

LATER_KEYS: Final[dict[tuple[str, str], Any]] = {
    ("optimizer", "foreach"): None,
    ("optimizer", "capturable"): None,
    ("optimizer", "groups"): [],
    ("optimizer", "each"): {},
    ("optimizer", "state_dtype"): None,
    ("parallel", "blocks"): [],
    ("parallel", "bucket_cap_mb"): None,
    ("parallel", "find_unused_parameters"): False,
    ("parallel", "mixed_precision"): "policy",
    ("parallel", "num_processes"): None,
    ("parallel", "reduce_dtype"): None,
    ("parallel", "reshard_after_forward"): True,
    ("parallel", "strategy"): "single",
    ("parallel", "sync_batchnorm"): False,
    ("precision", "emulate_precision_casts"): False,
    ("precision", "fp32_matmul"): None,
    ("precision", "fp32_modules"): [],
    ("seam", "saved_in"): None,
    ("seam", "step"): None,
    ("task", "gradient_penalty"): 0.0,
    ("task", "output"): None,
    ("task", "penalty_of"): "parameters",
    ("trainer", "accumulate_dtype"): None,
    ("trainer", "cudnn_benchmark"): None,
    ("trainer", "max_grad_value"): None,
    ("trainer", "warmup_seconds"): None,
}
"""Keys (group, key) that came after the first records, with the default that does what runs did before there was the
key. At this value a key is left out of every hash, so that old records stay known and pair."""


def resolved_values(config: Config) -> dict[str, Any]:
    """The whole config as plain values that JSON can hold."""
    return asdict(config)


def config_hash(config: Config) -> str:
    """Twelve hex digits that identify a finished point: equal if every setting that can change its result is equal."""
    return _digest(_result_settings(config))


def workload_hash(config: Config) -> str:
    """Twelve hex digits, equal for configs that differ only in their arm."""
    return _digest(_without_arm(_result_settings(config)))


def pair_key(config: Config, *, device_name: str, world_size: int, data_fingerprint: str) -> str:
    """Twelve hex digits, equal for runs that differ only in their arm, on devices of one model, the same data and code.

    So do a run that goes on from a checkpoint at its seam and the uninterrupted run that has kept it.
    """
    settings = _without_arm(_result_settings(replace(config, seam=replace(config.seam, saved_in=None))))
    settings["data"] = _without(settings["data"], _LOCATIONS)
    del settings["device"]  # several may do, such as those of `auto`: the model of the one that was taken decides
    if "parallel" in settings:  # the number of ranks decides, whether it was given or found
        settings["parallel"] = _without(settings["parallel"], ("num_processes",))
    facts = [device_name, world_size, code_version(), data_fingerprint]
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
    """`<arm>-<model>-s<seed>-<config hash>`, safe as one folder name everywhere; after a seam `<arm>-after-<arm>`."""
    before = saved_in(config)
    arm = arm_of(config) + ("" if before is None else f"-after-{before}")
    readable = f"{arm}-{component_name(config.model)}-s{config.seed}"
    readable = hide(readable, beside=resolved_values(config))
    return f"{folder_name(readable)}-{config_hash(config)[:8]}"


def _result_settings(config: Config) -> dict[str, Any]:
    settings = {key: value for key, value in resolved_values(config).items() if key not in _NOT_HASHED}
    settings["trainer"] = _without(settings["trainer"], _CADENCE)
    # Where they have no effect the baseline is the same run whatever they say.
    effective = with_effect(config.precision)
    settings["precision"] |= {"fp32_modules": effective.fp32_modules, "fp32_matmul": effective.fp32_matmul}
    settings["precision"][EMULATED_CASTS] = emulates_casts(config)
    settings["parallel"] = {} if config.parallel.strategy == "single" else settings["parallel"]
    changed = outside_differences(config)
    for group, keys in ARM_KEYS.items():  # what changes no dtype is the same run, whatever it says
        settings[group] = _without(settings[group], keys) | {key: changed[key] for key in keys if key in changed}
    _leave_out_later_keys(settings)
    if config.max_batch.search:  # the batch size is then a result; `data.batch_size` is where the search begins
        settings["data"] = _without(settings["data"], ("batch_size",))
    else:
        del settings["max_batch"]
    return settings


def _without_arm(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without what makes the arm."""
    rest = _without(settings, ("precision",))
    return rest | {group: _without(rest[group], keys) for group, keys in ARM_KEYS.items() if group in rest}


def _leave_out_later_keys(settings: dict[str, Any]) -> None:
    for (group, key), default in LATER_KEYS.items():
        # In a class of the user's own a key of this name means something else, and its absence another default.
        if not _is_own(group, settings[group]) and key in settings[group] and settings[group][key] == default:
            del settings[group][key]
    if not _is_own("optimizer", settings["optimizer"]):  # whose name says the class
        settings["optimizer"] = _without(settings["optimizer"], ("_target_",))
    for group in ("parallel", "seam"):  # all of whose keys are later ones
        if not settings[group]:
            del settings[group]


def _is_own(group: str, part: dict[str, Any]) -> bool:
    if group == "optimizer":
        option = OPTIMIZERS.get(part["name"])
        return option is None or part["_target_"] != option._target_
    return group in COMPONENTS and not str(part["_target_"]).startswith("ampsweep.")


def _without(values: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
