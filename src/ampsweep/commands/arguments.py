"""Read the arguments of `train.py` before Hydra does."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.utils import get_args_parser  # the one list of Hydra's options

from ampsweep.config.compose import CONF
from ampsweep.config.errors import UserError, allowed, meant_option
from ampsweep.config.overrides import quoted
from ampsweep.text import after_guess

_ASKS_HYDRA = ("help", "hydra_help", "cfg", "info", "resolve", "package", "shell_completion", "experimental_rerun")


@dataclass(frozen=True)
class Arguments:
    overrides: tuple[str, ...]
    multirun: bool
    for_hydra: bool
    """True if the line asks Hydra for something other than running: help, the composed config, shell completion."""


def parse(argv: Sequence[str]) -> Arguments:
    """Parse the arguments after the program's name. UserError: unknown option, or a config directory that does not
    exist or shadows a file of the suite."""
    parser = get_args_parser()
    parser.exit_on_error = parser.allow_abbrev = False
    try:
        found, unknown = parser.parse_known_intermixed_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    if found.config_path is not None:
        unknown = ["--config-path"]  # the suite's own; a user's files are added by --config-dir
    if found.config_name is not None:
        raise UserError(f"--config-name {found.config_name}: there is one config; other options come by --config-dir")
    if unknown:
        allowed_are = after_guess(meant_option(unknown, found), "settings are given as key=value")
        raise UserError(f"unknown option {unknown[0]}; {allowed_are}, see python train.py --help")
    overrides = list(found.overrides)
    if found.config_dir is not None:
        directory = Path(found.config_dir).resolve()
        if not directory.is_dir():
            raise UserError(f"--config-dir {found.config_dir} is not a directory")
        for own in sorted(CONF.rglob("*.yaml")):
            theirs = directory / (name := own.relative_to(CONF))
            if theirs.is_file() and theirs.read_bytes() != own.read_bytes():
                raise UserError(
                    f"--config-dir {found.config_dir}: {name} is also the name of a file of the suite's, which Hydra "
                    "would take instead; give yours another name"
                )
        # As an override, --config-dir takes effect wherever a point is composed.
        overrides.append(f"hydra.searchpath=[{quoted('file://' + str(directory))}]")
    for_hydra = any(getattr(found, name) for name in _ASKS_HYDRA)
    return Arguments(tuple(overrides), found.multirun, for_hydra)


def taken_out(argv: Sequence[str], key: str, known: Sequence[str]) -> tuple[list[str], str]:
    """Remove `key=VALUE`, which is not a config key, from a command line; return the rest and the value. The default is
    the first of the known values. UserError: a value that is not one of them."""
    given = [argument for argument in argv if argument.startswith(f"{key}=")]
    for argument in given:
        if argument.partition("=")[2] not in known:
            raise UserError(f"{argument}: {allowed(argument.partition('=')[2], known)}")
    chosen = given[-1].partition("=")[2] if given else known[0]
    return [argument for argument in argv if argument not in given], chosen


def chooses_precision(overrides: Sequence[str]) -> bool:
    return any(override.lstrip("+~").startswith("precision") for override in overrides)
