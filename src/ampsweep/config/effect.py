"""Keys that have an effect only beside others; what each counts with stands at its field in the schema."""

from collections.abc import Collection, Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, get_type_hints

from ampsweep.config.errors import UserError
from ampsweep.config.schema import COMMAND, COUNTS_WITH, Config, SchedulerConfig

_FIELDS: Final[dict[str, Field[Any]]] = {
    f"{group}.{one.name}": one
    for group, part in (get_type_hints(Config) | {"scheduler": SchedulerConfig}).items()
    if is_dataclass(part)
    for one in fields(part)
    if COUNTS_WITH in one.metadata
}


def counts_with(value: Any, values: Collection[str]) -> bool:
    """Tell whether a key that another one counts with has one of the values or, without values, any at all."""
    return value in values if values else value not in (None, False)


def check_effect(configs: Collection[Config], overrides: Iterable[str], command: str = "train") -> None:
    """Refuse an override that changes a key and has an effect in none of the command's configs.

    Raises:
        UserError: the first such override, with what it lacks.
    """
    for override in overrides:
        key = override.partition("=")[0]
        if (one := _FIELDS.get(key)) is None:
            continue
        stock = one.default if one.default_factory is MISSING else one.default_factory()
        needed, values = one.metadata[COUNTS_WITH]
        found = [command] if needed == COMMAND else [_value(config, needed) for config in configs]
        if any(counts_with(value, values) for value in found) or all(_value(one, key) == stock for one in configs):
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
