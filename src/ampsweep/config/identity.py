"""Names of runs, and hashes that are equal for configs of the same run, pair or workload."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from ampsweep import __version__
from ampsweep.config.components import is_plateau
from ampsweep.config.modes import ARM_KEYS, arm_of, outside_differences, with_effect
from ampsweep.config.schema import Config, component_name
from ampsweep.redaction import hide
from ampsweep.text import folder_name

# Where results are kept and how they are shown changes no result.
_NOT_HASHED = ("name", "tracking", "report", "predict", "doctor", "numerics", "resume", "into", "dry_run", "output_dir")
# The fingerprint stands for the content of the data, wherever it is.
_LOCATIONS = ("path", "val_path")
_CADENCE = ("log_every", "checkpoint_every", "grace_seconds", "keep_weights")
NO_RESULT: Final = frozenset(
    {*_NOT_HASHED, "max_batch", *(f"data.{key}" for key in _LOCATIONS), *(f"trainer.{key}" for key in _CADENCE)}
)
"""Groups and keys of the config that change no result of a training; a search's batch size is in the identity."""
_OF_METRIC = ("metric", "goal", "min_delta")


def config_hash(config: Config) -> str:
    """Twelve hex digits that identify a finished point: equal if every setting that can change its result is equal. The
    checkpoint that a run continues from counts."""
    origin = {"resume": config.resume} if config.begins_elsewhere else {}
    return digest_of_values(_result_settings(config) | origin)


def training_hash(config: Config) -> str:
    """`config_hash` without the checkpoint that the run continues from."""
    return config_hash(replace(config, resume=None))


def workload_hash(config: Config) -> str:
    """Twelve hex digits, equal for configs that differ only in their arm."""
    return digest_of_values(_without_arm(_result_settings(config)))


def pair_key(config: Config, *, device_name: str, world_size: int, data_fingerprint: str) -> str:
    """Twelve hex digits, equal for runs that differ only in their arm, on the same model of device and the same data.

    The package's version counts, not the state of its source, whose differences a comparison notes. The checkpoint that
    a run continues from does not count.
    """
    settings = _without_arm(_result_settings(config))
    settings["data"] = _without(settings["data"], _LOCATIONS)
    del settings["device"]  # `device_name` counts instead: `auto` may take any of several
    # `world_size` counts instead, given or detected.
    settings["parallel"] = _without(settings["parallel"], ("num_processes",))
    facts = [device_name, world_size, __version__, data_fingerprint]
    return digest_of_values([settings, facts])


@cache
def code_version() -> str:
    """Package version and a digest of the package's source files."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:8]}"


def run_directory_name(config: Config) -> str:
    """`<arm>-<model>-s<seed>-<config hash>`, a valid folder name on every system. The prefix `resumed-` of a run that
    continues from a checkpoint keeps it out of patterns such as `resume=ARM*`."""
    prefix = "resumed-" if config.begins_elsewhere else ""
    readable = f"{prefix}{arm_of(config)}-{component_name(config.model)}-s{config.seed}"
    readable = hide(readable, beside=asdict(config))
    return f"{folder_name(readable)}-{config_hash(config)[:8]}"


def _result_settings(config: Config) -> dict[str, Any]:
    settings = {key: value for key, value in asdict(config).items() if key not in _NOT_HASHED}
    settings["trainer"] = _without(settings["trainer"], _CADENCE)
    # Settings without effect do not count, so that they do not split the baseline.
    if config.trainer.patience is None and not is_plateau(config.scheduler):
        settings["trainer"] = _without(settings["trainer"], _OF_METRIC)
    effective = with_effect(config.precision)
    settings["precision"] |= {"fp32_modules": effective.fp32_modules, "fp32_matmul": effective.fp32_matmul}
    settings["parallel"] = {} if config.parallel.strategy == "single" else settings["parallel"]
    changed = outside_differences(config)
    for group, keys in ARM_KEYS.items():  # only values that change a dtype count
        settings[group] = _without(settings[group], keys) | {key: changed[key] for key in keys if key in changed}
    if config.max_batch.search:  # the batch size is then a result
        settings["data"] = _without(settings["data"], ("batch_size",))
    else:
        del settings["max_batch"]
    return settings


def _without_arm(settings: dict[str, Any]) -> dict[str, Any]:
    rest = _without(settings, ("precision",))
    return rest | {group: _without(rest[group], keys) for group, keys in ARM_KEYS.items() if group in rest}


def _without(values: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def digest_of_values(content: Any) -> str:
    """Twelve hex digits, equal for equal values of JSON."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
