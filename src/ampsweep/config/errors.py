"""User errors: one sentence about a wrong config, with the key and the allowed values."""

import re
from argparse import Namespace
from collections.abc import Iterable, Sequence

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)
from yaml import MarkedYAMLError

from ampsweep.config.claims import named_mode
from ampsweep.config.schema import COMPONENTS, FIELDS
from ampsweep.text import after_guess, meant


class UserError(ValueError):
    """Wrong input of the user; exit code 2."""


class UnsupportedError(UserError):
    """This model or device does not support the settings. In a sweep the point ends as `unsupported`, and the others
    run."""


def user_error(error: Exception) -> UserError:
    """Translate an error of Hydra, OmegaConf or YAML about a config, or one of Python's about a file that is none."""
    return UserError(_sentence(error))


def _sentence(error: Exception) -> str:
    if isinstance(error, OverrideParseException):
        given = str(error.override)
        if "=" not in given:
            return f"{given}: is not key=value"
        return f"{given}: cannot be read as key=value; a value with special characters needs quotes"
    cause: BaseException = error
    while isinstance(cause.__cause__, HydraException | OmegaConfBaseException):
        cause = cause.__cause__
    said = str(cause).strip().partition("\n")[0].rstrip(".")
    match cause:
        case MissingConfigException():
            group, _, option = str(cause.missing_cfg_file).rpartition("/")
            known = sorted(cause.options or ())
            return f"{group}={option}: {no_such_option(group, option, known)}" if group and known else said
        case ConfigKeyError() | ConfigAttributeError() if isinstance(cause.parent_node, DictConfig):
            key, parent = str(cause.full_key), cause.parent_node
            is_open = OmegaConf.get_type(parent) is dict and key.partition(".")[0] in COMPONENTS
            hint = f"; +{key} adds one" if is_open else ""
            return unknown_key(key, (name for name in parent if name != "hydra")) + hint
        case ConfigKeyError() | ConfigAttributeError():
            return f"unknown key {cause.full_key}"
        case MissingMandatoryValue():
            named = re.search(r"Missing mandatory value: (\S+)", str(cause))
            return f"{cause.full_key or (named[1] if named else said)} must be given a value"
        case InterpolationKeyError() | InterpolationResolutionError():
            hint = "; the chosen model, data and task do not fit together" if "data.provides" in str(cause) else ""
            return f"{cause.full_key}: {said}{hint}"
        case ValidationError() if "is not Optional" in str(cause):
            return f"{cause.full_key}=null: must be given a value"
        case ValidationError() if "is not a ListConfig" in str(cause):
            return f"{cause.full_key}: must be a list, such as [first,second]"
        case ValidationError():
            return f"{cause.full_key}: {said}"
        case ConfigCompositionException() if "Ambiguous value" in str(cause):
            return f"{said}; add -m to sweep over several values"
        case MarkedYAMLError():
            problem = " ".join(filter(None, (cause.context, cause.problem)))
            mark = cause.problem_mark or cause.context_mark
            return f"{mark.name}: not YAML: {problem} in line {mark.line + 1}, column {mark.column + 1}"
        case UnicodeDecodeError():
            return f"a YAML file of the config is not UTF-8 text: {cause.reason} at byte {cause.start}"
    whole = " ".join(str(cause).split())
    is_of_config = isinstance(cause, HydraException | OmegaConfBaseException)
    return whole if is_of_config else f"the config cannot be composed: {whole}"


def no_such_option(group: str, option: str, known: Sequence[str]) -> str:
    """The end of the error about an option of a group. Precisions are known by their names elsewhere too."""
    mode = named_mode(option) if group == "precision" else None
    return f"no such option; {allowed(option if mode is None else mode.name, known)}"


def allowed(given: str, known: Sequence[str]) -> str:
    """The end of the error about a word that is not one of the known ones."""
    return after_guess(meant(given, known), f"allowed are {', '.join(known)}")


def unknown_key(key: str, known: Iterable[object], owner: str | None = None) -> str:
    """The error about an unknown key, with the known ones beside it, and what was meant: one of those, or a key of the
    same name elsewhere."""
    where, _, name = key.rpartition(".")
    names = sorted(str(each) for each in known if str(each) != "_target_")
    hint = "; another launcher is chosen with hydra/launcher=NAME" if where == "hydra.launcher" else ""
    elsewhere = [other for other in FIELDS if other.endswith(f".{name}") and other != key]
    guess = meant(name, names if where else [*names, "experiment"])
    guess = " or ".join(elsewhere) if 0 < len(elsewhere) <= 2 else guess and f"{where}.{guess}".lstrip(".")
    clause = f"keys of {owner or where or 'the config'}: {', '.join(names) or 'none'}{hint}"
    return f"unknown key {key}; {after_guess(guess, clause)}"


def meant_option(unknown: Sequence[str], parsed: Namespace) -> str | None:
    """The option of a parser that the first of the words that it did not know misspells."""
    first = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
    return meant(first, [f"--{name.replace('_', '-')}" for name in vars(parsed)])
