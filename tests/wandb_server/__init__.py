"""A small W&B server for tests: HTTP on this machine, everything recorded, faults on command."""

from .faults import Fault
from .recorded import Alert, Artifact, Point, Request, Run, Sweep, View
from .server import ENTITY, KEY, WandbServer

__all__ = ["ENTITY", "KEY", "Alert", "Artifact", "Fault", "Point", "Request", "Run", "Sweep", "View", "WandbServer"]
