"""The line of source that calls a function, with one of its operands written anew."""

import ast
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn

from ampsweep.own_code import frame_of_caller

Place = tuple[int | str, ...]
"""The place of a tensor among the arguments of a call: `(0,)` the first, `(1, 0)` the first of a list that is the
second, `("out",)` a keyword argument."""
Rewrite = Callable[[str], str]
_Position = tuple[int | None, int | None, int | None, int | None]
"""First and last line, first and last column in bytes."""

_BETWEEN: Final = tuple(
    str(Path(torch.__file__).parent / file)
    for file in ("overrides.py", "nn/functional.py", "functional.py", "_tensor.py", "utils/_contextlib.py")
)
"""torch's files that stand between a caller and the function that it calls."""
_OURS: Final = (str(Path(__file__).parent), str(Path(__file__).parents[1] / "tracing"))
_PRIMARY: Final = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
"""Expressions to which `.to(...)` can be added without brackets."""


@dataclass(frozen=True)
class CallSite:
    """The expression in the code of a model or a task that runs now and calls what failed."""

    node: ast.AST
    parents: tuple[ast.AST, ...]
    """The syntax that the expression lies in, the innermost first."""
    source: str
    frame: FrameType
    is_direct: bool
    """It calls the failed function itself, not a module that calls it."""

    @staticmethod
    def now(inner: FrameType) -> "CallSite | None":
        """Find it above the frame `inner`; None where the source is not there or there is no such code."""
        frame = frame_of_caller()
        if frame is None:
            return None
        source, nodes = _parsed(frame.f_code.co_filename)
        position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
        found = nodes.get(position) if position is not None else None
        if found is None:
            return None
        between, is_direct = inner.f_back, True
        while between is not None and between is not frame:
            is_direct &= between.f_code.co_filename in _BETWEEN or between.f_code.co_filename.startswith(_OURS)
            between = between.f_back
        return CallSite(found[0], found[1], source, frame, is_direct)

    def rewritten(self, changes: list[tuple[Place, Tensor | None, Rewrite]]) -> str | None:
        """The statement with operands rewritten; None where an operand is not found in it.

        Args:
            changes: the place among the arguments, the tensor there (None: a number), and what its expression becomes.
        """
        edits: list[tuple[ast.expr, Rewrite]] = []
        for place, tensor, rewrite in changes:
            operand = self._operand(place, tensor)
            if operand is None:
                return None
            if not any(one is operand for one, _ in edits):
                is_tuple = isinstance(self._value(operand), tuple)
                edits.append((operand, partial(_of_each, rewrite) if is_tuple else rewrite))
        return " ".join(self._edited(self._whole, edits).split())

    def expression(self, place: Place, tensor: Tensor) -> str | None:
        """The expression of an operand, if it is short."""
        operand = self._operand(place, tensor)
        text = None if operand is None else self._text(operand)
        return text if text is not None and text.replace(".", "").replace("_", "").isalnum() else None

    def replaced(self, end: str) -> str | None:
        """The statement with `end` added to the expression."""
        if not isinstance(self.node, ast.expr):
            return None
        return " ".join(self._edited(self._whole, [(self.node, lambda text: text + end)]).split())

    def apart(self) -> str:
        """The statement if it computes nothing but the expression; else that alone, with its first operand named."""
        inner = [*ast.walk(self.node)][1:]
        others = [
            one for one in ast.walk(self._whole) if isinstance(one, ast.Call | ast.BinOp) and one is not self.node
        ]
        if not others or not isinstance(self.node, ast.Call):
            return " ".join(self._text(self._whole).split())
        operands = [one for one in self.node.args[:1] if any(other in inner for other in others)]
        return " ".join(f"y = {self._edited(self.node, [(one, lambda _: 'x') for one in operands])}".split())

    def without_method(self) -> str | None:
        """The statement with the object itself in place of the method that the expression calls."""
        node = self.node
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        bare = self._text(node.func.value)
        return " ".join(self._edited(self._whole, [(node, lambda _: bare)]).split())

    def with_line(self, word: str, rewrite: Rewrite) -> str | None:
        """The innermost `with` around the expression that has a word in it, rewritten; None where there is none."""
        for one in self.parents:
            if isinstance(one, ast.With) and any(word in self._text(item) for item in map(_context, one.items)):
                return f"with {', '.join(rewrite(self._text(_context(item))) for item in one.items)}:"
        return None

    @property
    def _whole(self) -> ast.AST:
        """The statement that the expression lies in, if it is on one line; else the expression."""
        statement = next((one for one in (self.node, *self.parents) if isinstance(one, ast.stmt)), None)
        return statement if statement is not None and statement.lineno == statement.end_lineno else self.node

    def _edited(self, whole: ast.AST, edits: list[tuple[ast.expr, Rewrite]]) -> str:
        data, begin = self.source.encode(), self._offset(whole)
        text = data[begin : self._offset(whole, end=True)]
        for operand, rewrite in sorted(edits, key=lambda edit: -self._offset(edit[0])):
            first, last = self._offset(operand) - begin, self._offset(operand, end=True) - begin
            old = text[first:last].decode()
            new = rewrite(old if isinstance(operand, _PRIMARY) else f"({old})")
            text = text[:first] + new.encode() + text[last:]
        return text.decode()

    def _text(self, node: ast.AST) -> str:
        return self.source.encode()[self._offset(node) : self._offset(node, end=True)].decode()

    def _offset(self, node: Any, *, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return sum(len(one.encode()) for one in self.source.splitlines(keepends=True)[: line - 1]) + int(column)

    def _operand(self, place: Place, tensor: Tensor | None) -> ast.expr | None:
        if tensor is None:
            return self._at(place) if self.is_direct else None
        candidates = [*self._candidates()]
        for one in candidates:
            value = self._value(one)
            if value is tensor or (isinstance(value, tuple) and any(inner is tensor for inner in value)):
                return one
        if self.is_direct:
            return self._at(place)
        for one in candidates:
            if _shares_values(self._value(one), tensor):
                return one
        unknown = [one for one in candidates if self._value(one) is None]
        return unknown[0] if len(candidates) == 1 and unknown else None

    def _candidates(self) -> Iterator[ast.expr]:
        """The operands of the expression: arguments, the object of a method, both sides, an assigned value."""
        node = self.node
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and self.is_direct:
                yield node.func.value
            for argument in (*node.args, *(one.value for one in node.keywords)):
                yield from _flat(argument)
        elif isinstance(node, ast.BinOp):
            yield from (node.left, node.right)
        elif isinstance(node, ast.AugAssign):
            yield node.value
        elif isinstance(node, ast.Subscript):
            yield node.value
            if isinstance(self.parents[0], ast.Assign | ast.AugAssign):
                yield self.parents[0].value

    def _at(self, place: Place) -> ast.expr | None:
        """The operand at a place among the arguments of a function that the expression calls itself."""
        node, first = self.node, place[0]
        found: ast.expr | None = None
        if isinstance(node, ast.Call):
            positional: list[ast.expr] = [*node.args]
            if any(isinstance(one, ast.Starred) for one in positional):
                return None
            if isinstance(node.func, ast.Attribute) and self._may_be_tensor(node.func.value):
                positional.insert(0, node.func.value)
            if isinstance(first, str):
                found = next((one.value for one in node.keywords if one.arg == first), None)
            elif first < len(positional):
                found = positional[first]
        elif isinstance(node, ast.BinOp) and first in (0, 1):
            found = node.left if first == 0 else node.right
        elif isinstance(node, ast.AugAssign) and first == 1:
            found = node.value
        elif isinstance(node, ast.Subscript) and first == 2 and isinstance(self.parents[0], ast.Assign):
            found = self.parents[0].value
        for inner in place[1:]:
            if not isinstance(found, ast.List | ast.Tuple) or not isinstance(inner, int) or inner >= len(found.elts):
                return None
            found = found.elts[inner]
        return found

    def _may_be_tensor(self, node: ast.expr) -> bool:
        value = self._value(node)
        return isinstance(value, Tensor) or (value is None and not isinstance(node, ast.Name))

    def _value(self, node: ast.expr) -> Any:
        """The value of a name or of an attribute of a module; None where it would have to be computed."""
        if isinstance(node, ast.Name):
            scopes = (self.frame.f_locals, self.frame.f_globals)
            return next((scope[node.id] for scope in scopes if node.id in scope), None)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            if isinstance(owner, nn.Module):
                held = (vars(owner), owner._parameters, owner._buffers, owner._modules)
                return next((one[node.attr] for one in held if node.attr in one), None)
            return getattr(owner, node.attr, None) if type(owner).__name__ == "module" else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = self._value(node.value)
            if isinstance(owner, dict | list | tuple):
                try:
                    return owner[node.slice.value]  # type: ignore[index]
                except (KeyError, IndexError, TypeError):
                    return None
        return None


def _context(item: ast.withitem) -> ast.expr:
    return item.context_expr


def _of_each(rewrite: Rewrite, text: str) -> str:
    return f"tuple({rewrite('one')} for one in {text})"


def _flat(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.List | ast.Tuple):
        for one in node.elts:
            yield from _flat(one)
    elif not isinstance(node, ast.Constant):
        yield node


def _shares_values(value: Any, tensor: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or tensor.layout is not torch.strided:
        return False
    return value.dtype == tensor.dtype and value.untyped_storage()._cdata == tensor.untyped_storage()._cdata


@cache
def _parsed(file: str) -> tuple[str, dict[_Position, tuple[ast.AST, tuple[ast.AST, ...]]]]:
    """The source of a file and its expressions by position."""
    source = "".join(linecache.getlines(file))
    found: dict[_Position, tuple[ast.AST, tuple[ast.AST, ...]]] = {}
    try:
        waiting: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(ast.parse(source), ())]
    except SyntaxError:
        return source, found
    while waiting:
        node, parents = waiting.pop()
        if isinstance(node, ast.expr | ast.AugAssign):
            position = node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
            found.setdefault(position, (node, parents))
        waiting += [(child, (node, *parents)) for child in ast.iter_child_nodes(node)]
    return source, found
