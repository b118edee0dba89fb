"""Words for people are written where sentences are: `analysis` has figures, kinds, and the records' own words."""

import ast
import re
from pathlib import Path

import pytest

import ampsweep

ANALYSIS = sorted((Path(ampsweep.__file__).parent / "analysis").glob("*.py"))
_WORDS = re.compile(r"[A-Za-z]{2,}[^A-Za-z]+[A-Za-z]{2,}")


def phrases(source: str) -> list[str]:
    """F-strings with two words or more; what an error says is for whoever calls, and no part of a comparison."""
    tree = ast.parse(source)
    raised = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Raise) for inner in ast.walk(node)}
    texts = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in node.values)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr) and id(node) not in raised
    ]
    return [text for text in texts if _WORDS.search(text)]


@pytest.mark.parametrize("path", ANALYSIS, ids=lambda path: path.stem)
def test_analysis_writes_no_sentence(path):
    assert phrases(path.read_text()) == []


def test_a_sentence_would_be_found():
    assert phrases('f"{count} of {total} runs failed"') == [" of  runs failed"]
    assert phrases('raise ValueError(f"the margin is {margin}")') == []
