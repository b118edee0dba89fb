"""Imported by every Python process of a recorded command at its start, through PYTHONPATH: waits for torch.

It imports nothing of this package before torch has been imported, and another `sitecustomize` on the path runs as ever.
"""

import importlib.machinery
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs every process milliseconds
_VARIABLE = "AMPSWEEP_RECORD"


class _AfterImport:
    """A finder that lets the others find torch and wandb, and tells the watcher once one of them has been imported.

    Whoever asks for the spec alone, to see whether a module is there, imports nothing.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name not in ("torch", "wandb"):
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader is again as it was
            loader.exec_module(module)
            try:
                if "torch" in sys.modules:
                    from ampsweep.integrations.script.watcher import imported

                    imported(name)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with the recording, the import has succeeded
                _cannot_record(error)

        if loader is not None:
            loader.exec_module = exec_module
        return spec


def _cannot_record(error: Exception) -> None:
    """Leave a word for the launcher, as `Session.tell` does, which may be what cannot be imported."""
    name = os.path.join(json.loads(os.environ[_VARIABLE])["folder"], f"{os.getpid()}.json")  # noqa: PTH118
    with open(name, "w", encoding="utf-8") as stream:  # noqa: PTH123
        reason = f"{sys.executable} cannot import the recorder: {type(error).__name__}: {error}"
        json.dump({"reason": reason}, stream)


def _run_the_other() -> None:
    path = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = type(sys)("sitecustomize")
        module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if _VARIABLE in os.environ:
    sys.meta_path.insert(0, _AfterImport())
_run_the_other()
