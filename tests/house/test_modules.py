"""Rooms import lower floors only, libraries stay in their rooms, names are unique and short, examples hold."""

import ast
import doctest
import importlib
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import ampsweep

ROOT = Path(ampsweep.__file__).parent
TESTS = Path(__file__).parents[1]
MAX_TEST_NAME = 75
GRAB_BAGS = {"utils", "util", "helpers", "misc", "common"}
FLOORS = (
    {"memory_categories", "user_code", "nested_tensors"},
    {"metrics", "text", "redaction", "argument_checks", "socket_folder", "standard_streams", "stop_signals"}
    | {"numeric_formats"},
    {"finding"},
    {"config", "records"},
    {"observe", "precision"},
    {"speed"},
    {"models", "data", "tasks", "monitors", "parallel", "launch", "tracking", "analysis"},
    {"recorder", "report"},
    {"training", "integrations"},
    {"run"},
    {"predict"},
    {"search", "sweep", "doctor"},
    {"commands"},
)
"""From the ground up; what is between `run` and `commands` are the features that build on a run."""
LIBRARIES = {
    "wandb": ("tracking/wandb/", "report/wandb/"),
    "wandb_workspaces": ("report/wandb/",),
    "hydra": ("commands/", "config/", "training/components/instantiate.py"),
    "transformers": ("integrations/transformers.py",),
    "accelerate": ("integrations/",),
    "lightning": ("integrations/lightning.py",),
    "omegaconf": ("commands/", "config/", "search/largest_batch.py"),
}
"""The places that may import a library."""
WITHOUT_TORCH = {
    *("memory_categories", "user_code", "metrics", "text", "redaction", "finding", "socket_folder", "stop_signals"),
    *("numeric_formats", "config", "records", "speed", "launch", "analysis", "report"),
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in sorted(ROOT.rglob("*.py"))
}


@cache
def imports(module: str) -> frozenset[str]:
    """Dotted names that a module imports anywhere in it, those under TYPE_CHECKING and in functions too."""
    nodes = [*ast.walk(ast.parse(MODULES[module].read_text()))]
    of_names = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    assert not any(node.level for node in of_names), f"{module} imports relatively"
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return frozenset(whole | {f"{node.module}.{alias.name}" for node in of_names for alias in node.names})


def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports."""
    inner = [name.removeprefix("ampsweep.") for name in imports(module) if name.startswith("ampsweep.")]
    return {name if name in MODULES else name.rpartition(".")[0] for name in inner} - {module, ""}


def room(module: str) -> str:
    return module.partition(".")[0]


def floor(module: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room(module) in rooms)


def test_a_room_imports_lower_floors_only_and_nothing_in_a_circle():
    pairs = [(module, other) for module in filter(None, MODULES) for other in own_imports(module)]
    between = [(module, other) for module, other in pairs if room(module) != room(other)]
    assert [(module, other) for module, other in between if floor(other) >= floor(module)] == []
    # Raises CycleError, which names the circle.
    tuple(TopologicalSorter({module: own_imports(module) for module in MODULES}).static_order())


def test_a_library_is_imported_in_its_rooms_only():
    libraries = {module: {name.partition(".")[0] for name in imports(module)} for module in MODULES}
    wrong = []
    for library, places in LIBRARIES.items():
        users = [MODULES[module].relative_to(ROOT).as_posix() for module in MODULES if library in libraries[module]]
        assert users, f"nobody imports {library}"
        wrong += [f"{user} imports {library}" for user in users if not user.startswith(places)]
    # A child that has torch already sets its number of threads.
    for module in MODULES.keys() - {"launch.isolated_child"}:
        if room(module) in WITHOUT_TORCH and "torch" in libraries[module]:
            wrong.append(f"{module} imports torch")
    assert wrong == []


def test_no_public_class_has_a_namesake_and_no_file_is_a_grab_bag():
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        assert path.stem not in GRAB_BAGS, path
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    del places["AmpsweepCallback"]  # one for each framework that is imported from
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_names_of_tests_are_short_and_files_have_no_namesakes():
    """pytest imports files from their folders by name: of two in one process the second would be the first."""
    files = [path for path in TESTS.rglob("*.py") if path.stem not in ("__init__", "conftest", "sitecustomize")]
    names = [path.stem for path in files]
    long = [
        node.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and len(node.name) > MAX_TEST_NAME
    ]
    assert ({name for name in names if names.count(name) > 1}, long) == (set(), [])


def test_examples_in_docstrings_hold():
    shown = [f"ampsweep.{name}" for name, path in MODULES.items() if ">>>" in path.read_text(encoding="utf-8")]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in shown}
    assert sum(result.attempted for result in results.values()) > 20
    assert [name for name, result in results.items() if result.failed] == []
