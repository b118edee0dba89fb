"""A room imports lower floors only, no files import each other in a circle, libraries stay in their rooms."""

import ast
from functools import cache
from pathlib import Path

import ampsweep

ROOT = Path(ampsweep.__file__).parent
FLOORS = (
    {"memory_categories", "user_code", "nested_tensors"},
    {"metrics", "text", "redaction", "argument_checks", "socket_folder", "standard_streams", "stop_signals"}
    | {"numeric_formats"},
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
"""From the ground up; what is between `run` and `commands` are the features that build on a run."""
LIBRARIES = {
    "wandb": ("tracking/wandb/", "report/wandb/"),
    "wandb_workspaces": ("report/wandb/",),
    "hydra": ("commands/", "config/", "training/components/instantiate.py"),
    "omegaconf": ("commands/", "config/", "search/largest_batch.py"),
}
"""The places that may import a library."""
WITHOUT_TORCH = {
    *("memory_categories", "user_code", "metrics", "text", "redaction", "finding", "socket_folder", "stop_signals"),
    *("numeric_formats", "config", "record", "launch", "analysis", "report"),
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in sorted(ROOT.rglob("*.py"))
}


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
    inner = [name.removeprefix("ampsweep.") for name in imports(module) if name.startswith("ampsweep.")]
    return {name if name in MODULES else name.rpartition(".")[0] for name in inner} - {module, ""}


def room(module: str) -> str:
    return module.partition(".")[0]


def floor(module: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room(module) in rooms)


def test_a_room_imports_lower_floors_only_and_nothing_in_a_circle():
    upward = [
        f"{module} imports {other}"
        for module in filter(None, MODULES)
        for other in own_imports(module)
        if room(other) != room(module) and floor(other) >= floor(module)
    ]
    circles: list[str] = []
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circles.append(" -> ".join((*path[path.index(module) :], module)))
        elif module not in done:
            for other in own_imports(module):
                visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())
    assert (upward, circles) == ([], [])


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
