"""Configs with another value of one key."""

from copy import deepcopy


def with_value(config, key, value):
    """A copy of a config with a value at a dotted key, which is not checked."""
    config = deepcopy(config)
    part = vars(config)
    *path, name = key.split(".")
    for step in path:
        part = part[step] if isinstance(part[step], dict) else vars(part[step])
    part[name] = value
    return config
