"""Arguments of `train.py`, which are Hydra's, read before Hydra reads them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ampsweep.config.errors import UserError
from ampsweep.config.hydra_config import CONF

_HYDRA_ONLY = ("help", "hydra_help", "version", "cfg", "info", "resolve", "package", "shell_completion", "rerun")


@dataclass(frozen=True)
class Arguments:
    """The arguments of `train.py` that are read before Hydra reads them."""

    overrides: tuple[str, ...]
    multirun: bool
    config_name: str
    for_hydra: bool
    """True if the line asks Hydra for something other than running: help, the composed config, shell completion."""


def parse(argv: Sequence[str], config_name: str) -> Arguments:
    """Read the arguments after the program's name.

    Raises:
        UserError: an option that neither the suite nor Hydra knows, or a config directory that does not exist or has a
            file with the name of one of the suite's.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-r", "--run", action="store_true")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name", default=config_name)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-i", "--info", nargs="?", const="all")
    for flag in ("--hydra-help", "--version", "--resolve"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("-sc", "--shell-completion", action="store_true")
    parser.add_argument("-c", "--cfg")
    parser.add_argument("-p", "--package")
    parser.add_argument("--experimental-rerun", dest="rerun")
    try:
        found, unknown = parser.parse_known_intermixed_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    if unknown:
        raise UserError(f"unknown option {unknown[0]}; settings are given as key=value, see python train.py --help")
    overrides = list(found.overrides)
    if found.config_dir is not None:
        directory = Path(found.config_dir).resolve()
        if not directory.is_dir():
            raise UserError(f"--config-dir {found.config_dir} is not a directory")
        if (hidden := _hidden_file(directory)) is not None:
            raise UserError(
                f"--config-dir {found.config_dir}: {hidden} is also the name of a file of the suite's, which Hydra "
                "would take instead; give yours another name"
            )
        # What --config-dir means to Hydra, as an override, so that it takes effect wherever a point is composed.
        overrides.append(f"hydra.searchpath=[{quoted('file://' + str(directory))}]")
    for_hydra = any(getattr(found, name) for name in _HYDRA_ONLY)
    return Arguments(tuple(overrides), found.multirun, found.config_name, for_hydra)


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


def _hidden_file(directory: Path) -> Path | None:
    """Find a config file below `directory` that the suite's own of this name would hide; equal ones hide nothing."""
    for own in sorted(CONF.rglob("*.yaml")):
        name = own.relative_to(CONF)
        theirs = directory / name
        if theirs.is_file() and theirs.read_bytes() != own.read_bytes():
            return name
    return None


def quoted(text: str) -> str:
    """Quote a string in Hydra's override grammar (https://hydra.cc/docs/advanced/override_grammar/basic/)."""
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"
