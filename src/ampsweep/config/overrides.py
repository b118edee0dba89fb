"""The overrides of a command line: parsed and checked before anything is composed, later checked for their effect."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, Final

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from ampsweep.config.errors import UserError
from ampsweep.config.field_rules import COMMAND, NEEDS, is_met
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.schema import COMPONENTS, FIELDS, Config

_SET_HERE: Final = ("hydra.run.dir", "hydra.sweep.dir", "hydra.output_subdir")
"""Hydra's keys that the suite sets itself: Hydra would write unredacted secrets into these directories."""


def parse_overrides(lines: Iterable[str]) -> list[Override]:
    """Parse overrides by Hydra's grammar. Hydra must be initialized, because `glob` searches the options. Raises
    Hydra's OverrideParseException if a line is not an override."""
    parsed = OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(list(lines))
    for override in parsed:
        if not override.key_or_group:
            raise UserError(f"{line(override)}: there is no key before the equals sign")
    return list(parsed)


def line(override: Override) -> str:
    """The override as the user wrote it."""
    return str(override.input_line)


def quoted(text: str) -> str:
    """Quote a string in Hydra's override grammar (https://hydra.cc/docs/advanced/override_grammar/basic/)."""
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"


def product(overrides: list[Override]) -> list[list[str]]:
    """The points of Hydra's basic sweeper, in its order: the first key varies slowest, later values replace earlier.
    UserError: an interval is swept, or an empty list."""
    for override in overrides:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(f"{line(override)}: the basic sweeper takes lists, not intervals")
        if override.is_discrete_sweep() and not [*override.sweep_string_iterator()]:
            raise UserError(f"{line(override)}: there is no such value")
    points: list[list[str]]
    [points] = BasicSweeper.split_arguments(overrides, None)
    return points


def check_overrides(overrides: Sequence[Override], conf: Path) -> None:
    """Raise UserError for the first faulty override that Hydra would accept, or refuse without a clear message; `conf`
    is the directory of the groups' options.
    """
    for override in overrides:
        for fault in _faults(override, conf):
            raise UserError(f"{line(override)}: {fault}")


def _faults(override: Override, conf: Path) -> Iterator[str]:
    top = override.key_or_group.partition(".")[0].partition("/")[0]
    changes_shape = override.is_add() or override.is_force_add() or override.is_delete()
    if changes_shape and top not in (*COMPONENTS, "hydra"):
        yield f"keys can be added or removed only in {', '.join(COMPONENTS)}"
    if override.key_or_group in _SET_HERE:
        yield "the suite chooses the directories of runs; give output_dir and name"
    if override.is_sweep_override() and override.is_hydra_override():
        yield "Hydra's own settings cannot be swept"
    if override.key_or_group == "precision.mode":  # only a label: the run would train as before
        yield f"a mode is chosen as precision=MODE; allowed are {', '.join(PRECISION_MODES)}"
    if override.is_delete() or not (conf / override.key_or_group).is_dir():
        return
    values = override.sweep_iterator() if override.is_discrete_sweep() else iter([override.value()])
    if not all(isinstance(value, str | list | dict) for value in values):  # Hydra's error would not name the group
        options = GlobalHydra.instance().config_loader().get_group_options(override.key_or_group)
        yield f"no such option; allowed are {', '.join(options)}"


def check_effect(configs: Collection[Config], overrides: Iterable[str], command: str = "train") -> None:
    """Raise UserError for the first override that changes a key and has an effect in none of the command's configs."""
    for override in overrides:
        key = override.partition("=")[0]
        if (field := FIELDS.get(key)) is None or NEEDS not in field.metadata:
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        needed, values = field.metadata[NEEDS]
        found = [command] if needed == COMMAND else [_value(config, needed) for config in configs]
        has_effect = any(is_met(value, values) for value in found)
        if has_effect or all(_value(config, key) in (None, default) for config in configs):
            continue
        if needed == COMMAND:
            raise UserError(f"{override}: has an effect in {COMMAND} {values[0]} only")
        option = needed.removesuffix(".strategy").removesuffix(".name")
        given = f"{option}={' or '.join(values)}" if values else needed
        raise UserError(f"{override}: has an effect only with {given}")


def _value(config: Config, key: str) -> Any:
    group, _, name = key.partition(".")
    part = getattr(config, group)
    return part.get(name) if isinstance(part, dict) else getattr(part, name)
