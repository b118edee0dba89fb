"""Configs with another value of one key."""

from copy import deepcopy


def with_value(config, key, value):
    """A copy of a config with a value at a dotted key, which is not checked."""
    part = config = deepcopy(config)
    *path, name = key.split(".")
    for step in path:
        part = part[step] if isinstance(part, dict) else getattr(part, step)
    if isinstance(part, dict):
        part[name] = value
    else:
        setattr(part, name, value)
    return config
