"""Instantiation of components by their `_target_`."""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from ampsweep.config.errors import UserError
from ampsweep.observe.memory_limit import is_out_of_memory
from ampsweep.precision.torchao_import import MissingTorchaoError, import_torchao
from ampsweep.text import one_line

_NOT_ARGUMENTS = ("name", "provides")  # keys of a component that its constructor does not take


def locate(group: str, component: dict[str, Any]) -> Any:
    """Import the class or function that `component` names, or raise a UserError; nothing is called."""
    target = str(component["_target_"])
    try:
        if target.startswith("torchao."):
            import_torchao("torchao.optim", f"{group}._target_={target}")
        found = pkgutil.resolve_name(target)
    except MissingTorchaoError as error:
        raise UserError(str(error)) from error
    except (Exception, SystemExit) as error:  # importing runs the user's code, which may raise anything
        raise UserError(f"{group}._target_={target} does not import: {one_line(error)}") from error
    if not callable(found):
        raise UserError(f"{group}._target_={target} is a {type(found).__name__}, not a class or function")
    return found


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a class or function by name; one without a signature takes any."""
    try:
        return inspect.signature(function).parameters
    except ValueError:  # a C extension
        return {"arguments": inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD)}


def build_component(group: str, component: dict[str, Any], *first: Any, **more: Any) -> Any:
    """Call the component's `_target_` with `first`, its other keys and `more`.

    Raises:
        UserError: the import or the call failed (in one line); an out-of-memory error is raised unchanged.
    """
    locate(group, component)
    arguments = {key: value for key, value in component.items() if key not in _NOT_ARGUMENTS}
    try:
        return instantiate(arguments, *first, **more, _convert_="all")
    except (InstantiationException, SystemExit) as error:
        cause = (error.__cause__ or error) if isinstance(error, InstantiationException) else error
        if is_out_of_memory(cause):
            raise cause from error
        raise UserError(f"{group}={component.get('name', component['_target_'])}: {one_line(cause)}") from error
