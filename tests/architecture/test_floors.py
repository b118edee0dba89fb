"""The house as imports show it: rooms import lower floors only, and heavy libraries stay in their rooms."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "ampsweep"
FLOORS = (
    {"config", "metrics", "record", "batch_search", "out_of_memory", "redaction"},
    {"precision", "models", "data", "tasks", "monitors", "tracking", "analysis"},
    {"build", "training", "report", "predict", "doctor", "launch"},
    {"entries"},
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            if node.module == "ampsweep":
                yield from (f"ampsweep.{alias.name}" for alias in node.names if alias.name in FLOOR_OF)


def named(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_room_imports_lower_floors_only(path):
    room = room_of(path)
    if room == "__init__":
        return
    for module in imports(path):
        other = module.split(".")[1] if module.startswith("ampsweep.") else room
        if other == room:
            continue
        down = FLOOR_OF[other] < FLOOR_OF[room]
        ground = FLOOR_OF[room] == 0 and other in FLOORS[0] - {"config"}
        assert down or ground, f"{named(path)} ({room}, floor {FLOOR_OF[room]}) imports {module}"


@pytest.mark.parametrize("path", FILES, ids=named)
def test_libraries_stay_in_their_rooms(path):
    room, modules = room_of(path), {module.split(".")[0] for module in imports(path)}

    if room != "tracking" and not named(path).startswith("report/wandb_views/"):
        assert not modules & {"wandb", "wandb_workspaces"}
    if room not in {"config", "entries"} and named(path) != "build/instantiate.py":
        assert not modules & {"hydra", "omegaconf"}
    if room in {"analysis", "report", "record", "metrics", "launch", "config"}:
        # launch sets the number of threads of a child that has torch already.
        assert "torch" not in modules or named(path) == "launch/child.py"


def test_no_file_is_a_grab_bag():
    assert not [path for path in FILES if path.stem in {"utils", "util", "helpers", "misc", "common"}]


@pytest.mark.parametrize("module", ["ampsweep.commands.train", "ampsweep.commands.main"])
def test_the_parent_of_a_sweep_and_the_report_do_without_torch_and_wandb(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'wandb', 'sklearn') if name in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert loaded.stdout.strip() == "[]"
