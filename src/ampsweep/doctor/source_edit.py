"""The line of source that calls a function, with some of its operands rewritten."""

import ast
import copy
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

from ampsweep.observe.operators import storage_id
from ampsweep.user_code import frame_of_caller

Place = tuple[int | str, ...]
"""The place of a tensor among the arguments of a call: `(0,)` the first, `(1, 0)` the first of a list that is the
second, `("out",)` a keyword argument."""
Rewrite = Callable[[str], str]
_Position = tuple[int | None, int | None, int | None, int | None]  # first and last line, first and last column in bytes

_BETWEEN: Final = tuple(
    str(Path(torch.__file__).parent / file)
    for file in ("overrides.py", "nn/functional.py", "functional.py", "_tensor.py", "utils/_contextlib.py")
)
"""torch's files that can be on the stack between a caller and the function that it calls."""
_OURS: Final = (str(Path(__file__).parent), str(Path(__file__).parents[1] / "observe"))


@dataclass(frozen=True)
class CallSite:
    """The running expression, in the code of a model or a task, that calls what failed."""

    node: ast.expr | ast.AugAssign
    parents: tuple[ast.AST, ...]  # the syntax around the expression, the innermost first
    frame: FrameType
    is_direct: bool  # it calls the failed function itself, not a module that calls it

    @staticmethod
    def now(inner: FrameType) -> "CallSite | None":
        """Find it above the frame `inner`; None if there is no such code, or no source of it."""
        frame = frame_of_caller()
        if frame is None:
            return None
        position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
        found = None if position is None else _expressions(frame.f_code.co_filename).get(position)
        if found is None:
            return None
        between, is_direct = inner.f_back, True
        while between is not None and between is not frame:
            is_direct &= between.f_code.co_filename in _BETWEEN or between.f_code.co_filename.startswith(_OURS)
            between = between.f_back
        return CallSite(*found, frame, is_direct)

    def rewritten(self, changes: list[tuple[Place, Tensor | None, Rewrite]]) -> str | None:
        """The statement with operands (by place; tensor None: a number) rewritten; None if an operand is not found."""
        edits: dict[ast.expr, Rewrite] = {}
        for place, tensor, rewrite in changes:
            operand = self._operand(place, tensor)
            if operand is None:
                return None
            is_tuple = isinstance(self._value(operand), tuple)
            edits.setdefault(operand, partial(_of_each, rewrite) if is_tuple else rewrite)
        return _edited(self._whole, edits)

    def expression(self, place: Place, tensor: Tensor) -> str | None:
        operand = self._operand(place, tensor)
        text = "" if operand is None else ast.unparse(operand)
        return text if text.replace(".", "").replace("_", "").isalnum() else None

    def replaced(self, end: str) -> str | None:
        return _edited(self._whole, {self.node: lambda text: text + end}) if isinstance(self.node, ast.expr) else None

    def apart(self) -> str:
        """The statement if it computes only the expression; else that alone, with its first operand named."""
        inner = [*ast.walk(self.node)][1:]
        nodes = (node for node in ast.walk(self._whole) if node is not self.node)
        others = [node for node in nodes if isinstance(node, ast.Call | ast.BinOp)]
        if not others or not isinstance(self.node, ast.Call):
            return ast.unparse(self._whole)
        operands = [operand for operand in self.node.args[:1] if any(other in inner for other in others)]
        return f"y = {_edited(self.node, {operand: lambda _: 'x' for operand in operands})}"

    def without_method(self) -> str | None:
        """The statement with the object itself in place of the method that the expression calls."""
        node = self.node
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return None
        bare = ast.unparse(node.func.value)
        return _edited(self._whole, {node: lambda _: bare})

    def with_line(self, word: str, rewrite: Rewrite) -> str | None:
        """The innermost `with` around the expression that contains a word, rewritten; None if there is none."""
        for parent in self.parents:
            if isinstance(parent, ast.With):
                contexts = [ast.unparse(item.context_expr) for item in parent.items]
                if any(word in text for text in contexts):
                    return f"with {', '.join(map(rewrite, contexts))}:"
        return None

    @property
    def _whole(self) -> ast.AST:
        statement = next((node for node in (self.node, *self.parents) if isinstance(node, ast.stmt)), None)
        return statement if statement is not None and statement.lineno == statement.end_lineno else self.node

    def _operand(self, place: Place, tensor: Tensor | None) -> ast.expr | None:
        if tensor is None:
            return self._at(place) if self.is_direct else None
        candidates = [*self._candidates()]
        for node in candidates:
            value = self._value(node)
            if value is tensor or (isinstance(value, tuple) and any(inner is tensor for inner in value)):
                return node
        if self.is_direct:
            return self._at(place)
        for node in candidates:
            if _shares_values(self._value(node), tensor):
                return node
        return candidates[0] if len(candidates) == 1 and self._value(candidates[0]) is None else None

    def _candidates(self) -> Iterator[ast.expr]:
        node = self.node
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and self.is_direct:
                yield node.func.value
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from _flat(argument)
        else:
            yield from (side for side in self._sides(node) if side is not None)

    def _sides(self, node: ast.AST) -> list[ast.expr | None]:
        """The operands of an operator in order; None for the target of an in-place assignment."""
        if isinstance(node, ast.BinOp):
            return [node.left, node.right]
        if isinstance(node, ast.AugAssign):
            return [None, node.value]
        if isinstance(node, ast.Subscript):
            parent = self.parents[0]
            return [node.value, None, parent.value if isinstance(parent, ast.Assign | ast.AugAssign) else None]
        return []

    def _at(self, place: Place) -> ast.expr | None:
        node, first = self.node, place[0]
        if isinstance(first, str):
            keywords = node.keywords if isinstance(node, ast.Call) else []
            found = next((keyword.value for keyword in keywords if keyword.arg == first), None)
        else:
            positional = self._sides(node)
            if isinstance(node, ast.Call):
                if any(isinstance(argument, ast.Starred) for argument in node.args):
                    return None
                positional = [*node.args]
                if isinstance(node.func, ast.Attribute):
                    value = self._value(owner := node.func.value)
                    if isinstance(value, Tensor) or (value is None and not isinstance(owner, ast.Name)):
                        positional = [owner, *node.args]
            found = positional[first] if first < len(positional) else None
        for inner in place[1:]:
            if not isinstance(found, ast.List | ast.Tuple) or not isinstance(inner, int) or inner >= len(found.elts):
                return None
            found = found.elts[inner]
        return found

    def _value(self, node: ast.expr) -> Any:
        """The value of a name or of an attribute of a module; None if it would have to be computed."""
        if isinstance(node, ast.Name):
            return self.frame.f_locals.get(node.id, self.frame.f_globals.get(node.id))
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            return getattr(owner, node.attr, None) if isinstance(owner, nn.Module | ModuleType) else None
        return None


def _edited(whole: ast.AST, edits: dict[ast.expr, Rewrite]) -> str:
    rewritten = {id(node): rewrite(f"({ast.unparse(node)})") for node, rewrite in edits.items()}
    new: dict[int, Any] = {key: ast.parse(text, mode="eval").body for key, text in rewritten.items()}
    return ast.unparse(copy.deepcopy(whole, new))


def _of_each(rewrite: Rewrite, text: str) -> str:
    return f"tuple({rewrite('one')} for one in {text})"


def _flat(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _flat(element)
    elif not isinstance(node, ast.Constant):
        yield node


def _shares_values(value: Any, tensor: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or tensor.layout is not torch.strided:
        return False
    return value.dtype == tensor.dtype and storage_id(value.untyped_storage()) == storage_id(tensor.untyped_storage())


@cache
def _expressions(file: str) -> dict[_Position, tuple[ast.expr | ast.AugAssign, tuple[ast.AST, ...]]]:
    found: dict[_Position, tuple[ast.expr | ast.AugAssign, tuple[ast.AST, ...]]] = {}
    try:
        waiting: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(ast.parse("".join(linecache.getlines(file))), ())]
    except SyntaxError:
        return found
    while waiting:
        node, parents = waiting.pop()
        if isinstance(node, ast.expr | ast.AugAssign):
            position = node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
            found.setdefault(position, (node, parents))
        waiting += [(child, (node, *parents)) for child in ast.iter_child_nodes(node)]
    return found
