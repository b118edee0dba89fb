"""Arguments of `train.py`, which are Hydra's, read before Hydra reads them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.utils import get_args_parser  # the one list of Hydra's options

from ampsweep.config.errors import UserError
from ampsweep.config.hydra_config import CONF

_ASKS_HYDRA = ("help", "hydra_help", "cfg", "info", "resolve", "package", "shell_completion", "experimental_rerun")


@dataclass(frozen=True)
class Arguments:
    """The arguments of `train.py` that are read before Hydra reads them."""

    overrides: tuple[str, ...]
    multirun: bool
    for_hydra: bool
    """True if the line asks Hydra for something other than running: help, the composed config, shell completion."""


def parse(argv: Sequence[str]) -> Arguments:
    """Read the arguments after the program's name.

    Raises:
        UserError: an option that neither the suite nor Hydra knows, or a config directory that does not exist or has a
            file with the name of one of the suite's.
    """
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
        raise UserError(f"unknown option {unknown[0]}; settings are given as key=value, see python train.py --help")
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
        # What --config-dir means to Hydra, as an override, so that it takes effect wherever a point is composed.
        overrides.append(f"hydra.searchpath=[{quoted('file://' + str(directory))}]")
    for_hydra = any(getattr(found, name) for name in _ASKS_HYDRA)
    return Arguments(tuple(overrides), found.multirun, for_hydra)


def taken_out(argv: Sequence[str], key: str, allowed: Sequence[str]) -> tuple[list[str], str]:
    """Take `key=VALUE`, which is no key of the config, out of a command line; return the rest, and the value.

    Without it the value is the first of those allowed.

    Raises:
        UserError: another value is given.
    """
    given = [argument.partition("=")[2] for argument in argv if argument.startswith(f"{key}=")]
    for value in given:
        if value not in allowed:
            raise UserError(f"{key}={value}: allowed are {', '.join(allowed)}")
    return [argument for argument in argv if not argument.startswith(f"{key}=")], (given or allowed)[-1 if given else 0]


def quoted(text: str) -> str:
    """Quote a string in Hydra's override grammar (https://hydra.cc/docs/advanced/override_grammar/basic/)."""
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"
