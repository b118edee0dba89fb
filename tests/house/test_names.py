"""No public class has a namesake, no file is a grab bag; tests have short names, and their files different ones."""

import ast
from collections import defaultdict
from pathlib import Path

import ampsweep

ROOT = Path(ampsweep.__file__).parent
TESTS = Path(__file__).parents[1]
MAX_TEST_NAME = 75
GRAB_BAGS = {"utils", "util", "helpers", "misc", "common"}


def test_no_public_class_has_a_namesake_and_no_file_is_a_grab_bag():
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        assert path.stem not in GRAB_BAGS, path
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(ROOT).as_posix())
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
