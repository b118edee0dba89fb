"""The words of the house: docstrings open with a noun or a verb, classes have no namesakes, tests have short names."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import ampsweep

ROOT = Path(ampsweep.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TESTS = Path(__file__).parents[1]
QUESTIONS = ("What", "Whether", "Of", "Where", "How", "Why", "Which", "Who", "That")
"""First words of a docstring that begins in the middle of a sentence."""
MAX_TEST_NAME = 60


def docstrings(path: Path) -> list[tuple[int, str]]:
    """The docstrings of modules, classes and functions, and the texts below attributes, by line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    return [
        (node.lineno, node.value.value)
        for body in bodies
        for node in body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_docstrings_open_with_a_noun_or_a_verb(path):
    wrong = [(line, text[:60]) for line, text in docstrings(path) if text.split(" ", 1)[0] in QUESTIONS]
    assert wrong == []


def test_no_public_class_has_a_namesake():
    places = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_names_of_tests_are_short():
    functions = (
        node
        for path in sorted(TESTS.rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    assert [one.name for one in functions if one.name.startswith("test_") and len(one.name) > MAX_TEST_NAME] == []


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them from their folders by name: of two in one process the second would be the first."""
    names = [path.stem for path in TESTS.rglob("*.py") if path.stem not in ("__init__", "conftest", "sitecustomize")]
    assert not {name for name in names if names.count(name) > 1}
