"""The house as imports show it: a room imports lower floors only, no files import each other in a circle."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import ampsweep

ROOT = Path(ampsweep.__file__).parent
FLOORS = (
    {"memory_categories", "own_code", "nested_tensors"},
    {
        "metrics",
        "text",
        "redaction",
        "argument_checks",
        "socket_folder",
        "standard_streams",
        "stop_signals",
        "numeric_formats",
    },
    {"finding"},
    {"config", "record"},
    {"observe", "precision"},
    {"models", "data", "tasks", "monitors", "parallel", "launch", "tracking", "analysis"},
    {"recorder", "report"},
    {"training"},
    {"run"},
    {"predict"},
    {"search", "sweep", "doctor"},
    {"commands"},
)
"""From the ground up. What is written below `run` and above `commands` are the features that stand on a run."""

LIBRARIES = {
    "wandb": ("tracking/wandb/", "report/wandb/"),
    "wandb_workspaces": ("report/wandb/",),
    "hydra": ("commands/", "config/", "training/components/instantiate.py"),
    "omegaconf": ("commands/", "config/", "search/largest_batch.py"),
}
"""The places that may import a library; all others take what these make of it."""
WITHOUT_TORCH = {
    "memory_categories",
    "own_code",
    "metrics",
    "text",
    "redaction",
    "finding",
    "socket_folder",
    "stop_signals",
    "numeric_formats",
    "config",
    "record",
    "launch",
    "analysis",
    "report",
}


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below it."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache
def imports(module: str) -> frozenset[str]:
    """Dotted names that a module imports anywhere in it, those under TYPE_CHECKING and in functions too."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{module} imports relatively"
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(named)


def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    found = set()
    for name in imports(module):
        inner = name.removeprefix("ampsweep.")
        if inner == name:
            continue
        found.add(inner if inner in MODULES else inner.rpartition(".")[0])
    return found - {module, ""}


def floor_of(module: str) -> int:
    room = module.partition(".")[0]
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_a_room_imports_rooms_of_lower_floors_only(module):
    room = module.partition(".")[0]
    not_below = {
        other
        for other in own_imports(module)
        if other.partition(".")[0] != room and floor_of(other) >= floor_of(module)
    }
    assert not not_below, f"{module} imports sideways or upward: {sorted(not_below)}"


def test_no_files_import_each_other_in_a_circle():
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"a circle: {' -> '.join((*path[path.index(module) :], module))}"
        if module not in done:
            for other in own_imports(module):
                visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_in_its_rooms_only(library):
    users = {
        MODULES[module].relative_to(ROOT).as_posix()
        for module in MODULES
        if any(name.partition(".")[0] == library for name in imports(module))
    }
    assert users, f"nobody imports {library}"
    assert not [user for user in users if not user.startswith(LIBRARIES[library])]


@pytest.mark.parametrize("module", [name for name in MODULES if name.partition(".")[0] in WITHOUT_TORCH])
def test_records_and_reports_do_without_torch(module):
    # A child that has torch already sets its number of threads.
    assert module == "launch.child" or "torch" not in {name.partition(".")[0] for name in imports(module)}


def test_no_file_is_a_grab_bag():
    assert not [name for name in MODULES if name.rpartition(".")[2] in {"utils", "util", "helpers", "misc", "common"}]


@pytest.mark.parametrize("module", ["ampsweep.commands.train", "ampsweep.commands.main"])
def test_commands_start_without_torch_and_wandb(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'wandb', 'sklearn') if name in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert loaded.stdout.strip() == "[]"
