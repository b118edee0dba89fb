"""A small W&B server for tests: HTTP on this machine, everything recorded, faults on command."""

from .recorded import ENTITY, Fault, Run, Sweep
from .server import KEY, WandbServer

__all__ = ["ENTITY", "KEY", "Fault", "Run", "Sweep", "WandbServer"]
