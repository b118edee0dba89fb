"""A small W&B server for tests: HTTP on this machine, everything recorded, faults on command."""

from .recorded import Alert, Artifact, Fault, Point, Request, Run, Sweep, View
from .server import ENTITY, KEY, WandbServer

__all__ = ["ENTITY", "KEY", "Alert", "Artifact", "Fault", "Point", "Request", "Run", "Sweep", "View", "WandbServer"]
