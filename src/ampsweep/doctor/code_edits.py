"""Edits of a training's source, printed as patches, and tried in its running functions: no file is written."""

import ast
import difflib
import gc
import linecache
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from ampsweep.user_code import shown_path

_FunctionDef = ast.FunctionDef | ast.AsyncFunctionDef
_OWN_FACTS: Final = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable")


class NotAppliedError(Exception):
    """Raised for an edit of code that no function runs any more, such as the body of a class."""


@dataclass(frozen=True)
class Splice:
    """Text in place of what lies between two positions: lines from 1 and columns in bytes from 0, as in `ast`."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str

    @staticmethod
    def before(node: ast.expr | ast.stmt, text: str) -> "Splice":
        at = node.lineno, node.col_offset
        return Splice(at, at, text)

    @staticmethod
    def after(node: ast.expr | ast.stmt, text: str) -> "Splice":
        at = node.end_lineno or node.lineno, node.end_col_offset or 0
        return Splice(at, at, text)

    @staticmethod
    def instead(node: ast.expr | ast.stmt, text: str) -> "Splice":
        return Splice((node.lineno, node.col_offset), Splice.after(node, "").start, text)

    @staticmethod
    def around(node: ast.expr, ending: str) -> list["Splice"]:
        """Call a method on the value of an expression, in brackets if it needs them: `(a + b).float()`."""
        is_whole = isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.Tuple | ast.List)
        brackets = ("", "") if is_whole else ("(", ")")
        return [Splice.before(node, brackets[0]), Splice.after(node, brackets[1] + ending)]


def tree_of(file: str) -> ast.Module:
    """The parsed source of a file, as an edit that is applied leaves it; empty if there is none."""
    return _parsed("".join(linecache.getlines(file)))


@cache
def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


@dataclass(frozen=True)
class CodeEdit:
    file: str
    old: str
    new: str
    words: str | None = None  # what it does, if that is not plain

    @staticmethod
    def of(file: str, splices: Iterable[Splice], words: str | None = None) -> "CodeEdit":
        lines = [line.encode() for line in linecache.getlines(file)]
        starts = [0, *accumulate(map(len, lines))]
        data = old = b"".join(lines)
        for splice in [*sorted(splices, key=lambda splice: splice.start)][::-1]:  # of equals the first comes first
            start, end = (starts[line - 1] + column for line, column in (splice.start, splice.end))
            data = data[:start] + splice.text.encode() + data[end:]
        return CodeEdit(file, old.decode(), data.decode(), words)

    @property
    def patch(self) -> str:
        """A unified diff, without its header's dates; `patch -p0` applies it from the working directory."""
        name, (old, new) = str(shown_path(Path(self.file))), (text.splitlines() for text in (self.old, self.new))
        return "\n".join(difflib.unified_diff(old, new, name, name, n=1, lineterm=""))

    @property
    def place(self) -> str:
        """The first line that it changes: `nets.py, line 12`."""
        lines = enumerate(zip(self.old.splitlines(), self.new.splitlines(), strict=False), start=1)
        number = next((number for number, (old, new) in lines if old != new), 1)
        return f"{shown_path(Path(self.file))}, line {number}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the functions of the file run as edited, and its source be read so; NotAppliedError if none changes."""
        old, new = (compile(text, self.file, "exec", dont_inherit=True) for text in (self.old, self.new))
        changed, redecorated = [*_changed(old, new)], [*_redecorated(_parsed(self.old), _parsed(self.new))]
        functions = _functions()
        running = [function for function in functions if function.__code__.co_filename == self.file]
        with ExitStack() as undo:
            num_swapped = 0
            for before, after in changed:
                for function in (function for function in running if _is_same(function.__code__, before)):
                    if function.__code__.co_freevars != after.co_freevars:
                        raise NotAppliedError
                    undo.callback(setattr, function, "__code__", function.__code__)
                    function.__code__ = after
                    num_swapped += 1
            for name, line, decorators in redecorated:
                for function in (function for function in running if function.__code__.co_firstlineno == line):
                    num_swapped += _redecorate(function, name, decorators, undo) or _without_context(
                        function, functions, undo
                    )
            if not num_swapped:
                raise NotAppliedError
            linecache.getlines(self.file)
            undo.callback(linecache.cache.__setitem__, self.file, linecache.cache[self.file])
            linecache.cache[self.file] = len(self.new), None, self.new.splitlines(keepends=True), self.file
            yield


def _functions() -> list[FunctionType]:
    return [*_frozen_functions(), *(found for found in gc.get_objects() if type(found) is FunctionType)]


@cache
def _frozen_functions() -> tuple[FunctionType, ...]:
    """The functions among the objects that are never collected, which are not listed."""
    if not gc.get_freeze_count():
        return ()
    gc.unfreeze()
    found = [found for found in gc.get_objects() if type(found) is FunctionType]
    gc.collect()
    gc.freeze()
    return tuple(found)


def _changed(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Code whose instructions differ, or those of a function that it defines; the outer first."""
    inner = [*zip(*([c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)), strict=False)]
    below = [pair for before, after in inner for pair in _changed(before, after)]
    if below or any(getattr(old, fact) != getattr(new, fact) for fact in _OWN_FACTS) or _numbers(old) != _numbers(new):
        yield old, new
    yield from below


def _numbers(code: CodeType) -> list[tuple[type, Any]]:
    return [(type(constant), constant) for constant in code.co_consts if not isinstance(constant, CodeType)]


def _is_same(own: CodeType, other: CodeType) -> bool:
    return (own.co_qualname, own.co_firstlineno, own.co_code) == (
        other.co_qualname,
        other.co_firstlineno,
        other.co_code,
    )


def _redecorated(old: ast.AST, new: ast.AST) -> Iterator[tuple[str, int, list[ast.expr]]]:
    """Functions with other decorators than before: name, first line of the code as it is, and the new decorators."""
    pairs = zip(
        *([node for node in ast.walk(tree) if isinstance(node, _FunctionDef)] for tree in (old, new)), strict=True
    )
    for before, after in pairs:
        if [*map(ast.dump, before.decorator_list)] != [*map(ast.dump, after.decorator_list)]:
            line = min(node.lineno for node in (before, *before.decorator_list))
            yield before.name, line, after.decorator_list


def _redecorate(function: FunctionType, name: str, decorators: list[ast.expr], undo: ExitStack) -> bool:
    """Put the function with other decorators in its place in its class or module; False if it is in neither."""
    owner: Any = sys.modules.get(function.__module__)
    for outer in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, outer, None)
    known = vars(owner).get(name) if owner is not None else None
    if known is None or unwrap(getattr(known, "__func__", known)) is not function:
        return False
    value: Any = function
    for decorator in reversed(decorators):
        value = eval(compile(ast.Expression(decorator), "<decorator>", "eval"), function.__globals__)(value)
    undo.callback(setattr, owner, name, known)
    setattr(owner, name, value)
    return True


def _without_context(function: FunctionType, wrappers: Iterable[FunctionType], undo: ExitStack) -> bool:
    """Let the decorators of a function that is in no class or module any more enter no context around it."""
    found = False
    for wrapper in wrappers:
        with suppress(ValueError):  # a cell that is not filled yet
            held = [(cell, cell.cell_contents) for cell in wrapper.__closure__ or ()]
            contexts = [known for known in held if isinstance(known[1], AbstractContextManager)]
            for cell, context in contexts if any(value is function for _, value in held) else ():
                undo.callback(setattr, cell, "cell_contents", context)
                cell.cell_contents, found = nullcontext(), True
    return found
