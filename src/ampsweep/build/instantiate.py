"""The one place that turns a `_target_` into an object."""

import pkgutil
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from ampsweep.config.errors import UserError

# Keys of a component that speak to the suite, not to its constructor.
_NOT_ARGUMENTS = ("name", "provides")


def locate(group: str, component: dict[str, Any]) -> Any:
    """Import the class or function that `component` names, without calling it.

    Raises:
        UserError: it does not import.
    """
    target = str(component["_target_"])
    try:
        return pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{group}._target_={target} does not import: {_one_line(error)}") from error


def build_component(group: str, component: dict[str, Any], **more: Any) -> Any:
    """Call the component's `_target_` with its other keys and `more`.

    Raises:
        UserError: it does not import, or refused its arguments (its own ValueError or TypeError, in one line).
    """
    locate(group, component)
    arguments = {key: value for key, value in component.items() if key not in _NOT_ARGUMENTS}
    try:
        return instantiate(arguments, **more, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError | TypeError):
            raise UserError(f"{group}={component.get('name', component['_target_'])}: {_one_line(cause)}") from error
        raise


def _one_line(error: BaseException) -> str:
    return (
        f"{type(error).__name__}: {' '.join(str(error).split())}" if not isinstance(error, ValueError) else str(error)
    )
