"""The code of a training that calls a function of torch: its expression, and what the names in it stand for."""

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, Final, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import SequenceKey, tree_leaves_with_path

from ampsweep.doctor.code_edits import CodeEdit, Splice, tree_of
from ampsweep.user_code import CodeLine, frame_of_caller

Place = tuple[int | str, ...]
"""The place of a tensor among the arguments of a call: `(0,)` the first, `(1, 0)` the first of a list that is the
second, `("out",)` a keyword argument."""
Remedy = dict[Place, torch.dtype]  # dtypes to cast to

_COMPREHENSIONS: Final = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")


@dataclass(frozen=True)
class Names:
    """What the expressions of some code stand for while one of its lines runs."""

    half: frozenset[str]  # tensors in half precision
    modules: frozenset[str]
    numbers: Mapping[str, float]
    functions: frozenset[str]  # classes of functions with a backward pass of their own
    torch: str | None  # torch's own name; None if the file does not import it

    @staticmethod
    def of(frame: FrameType) -> "Names":
        nodes = [node for node in ast.walk(tree_of(frame.f_code.co_filename)) if is_load(node)]
        values = {ast.unparse(node): value_in(node, frame) for node in nodes}
        return Names(
            half=frozenset(name for name, value in values.items() if _is_half(value)),
            modules=frozenset(name for name, value in values.items() if isinstance(value, nn.Module)),
            numbers={name: value for name, value in values.items() if type(value) in (int, float)},
            functions=frozenset(name for name, value in values.items() if _is_own_function(value)),
            torch=next((name for name, value in values.items() if value is torch), None),
        )


@dataclass(frozen=True)
class RunningCode:
    """The expression of the training's code that calls the running function."""

    line: CodeLine
    expression: ast.expr | ast.stmt
    values: dict[int, ast.expr]  # the expressions in it whose values are known, by the identity of these
    names: Names
    calls_method: bool

    @staticmethod
    def here() -> "RunningCode | None":
        frame = frame_of_caller()
        if frame is None:
            return None
        first, last, start, end = [*frame.f_code.co_positions()][frame.f_lasti // 2]
        tree = tree_of(frame.f_code.co_filename)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.Assign | ast.AugAssign)]
        found = [node for node in nodes if (node.end_lineno, node.end_col_offset) == (last, end)]
        # The call of a method that stands on a line of its own is said to begin there.
        exact = [node for node in found if (node.lineno, node.col_offset) == (first, start)]
        if not (exact or found):
            return None
        expression = (exact or found)[0]
        inner = [node for node in ast.walk(expression) if isinstance(node, ast.expr)]
        values = {id(value): node for node in inner if (value := value_in(node, frame)) is not None}
        called = expression.func if isinstance(expression, ast.Call) else expression
        owner = value_in(called.value, frame) if isinstance(called, ast.Attribute) else None
        is_function = not isinstance(called, ast.Attribute) or isinstance(owner, ModuleType | type)
        is_method = not is_function and not isinstance(value_in(called, frame), nn.Module)
        return RunningCode(CodeLine.of(frame), expression, values, Names.of(frame), is_method)

    def edit(self, remedy: Remedy, tensors: dict[Place, Tensor], *, in_statement: bool = False) -> CodeEdit | None:
        """The edit that gives the call other arguments, wherever its statement has them or in the call alone; None if
        the code has no expression for one of them."""
        nodes = {place: self.values.get(id(tensor)) or self._argument(place) for place, tensor in tensors.items()}
        splices: list[Splice] = []
        for place, new in remedy.items():
            node = nodes.get(place)
            if node is None:
                return None
            like = [nodes[at] for at, tensor in tensors.items() if tensor.dtype == new and at not in remedy]
            named = next((ast.unparse(other) for other in like if isinstance(other, ast.Name | ast.Attribute)), None)
            dtype = f"{named}.dtype" if named else str(new).replace("torch", self.names.torch or "torch")
            block, at = blocks_around(self.line)[0]
            same = (own for own in ast.walk(block[at]) if is_load(own) and ast.unparse(own) == ast.unparse(node))
            for use in [*same] if in_statement and is_load(node) else [node]:
                splices += Splice.around(use, ".float()" if new == torch.float32 else f".to({dtype})")
        return CodeEdit.of(self.line.file, dict.fromkeys(splices))

    def _argument(self, place: Place) -> ast.expr | None:
        """The expression of an argument by its place; a module's only argument is taken for its operators' first."""
        node, (first, *inner) = self.expression, place
        if isinstance(node, ast.Call) and isinstance(first, int):
            owner = [node.func.value] if self.calls_method and isinstance(node.func, ast.Attribute) else []
            found = [*owner, *node.args][first : first + 1]
        elif isinstance(node, ast.Call):
            found = [keyword.value for keyword in node.keywords if keyword.arg == first]
        elif isinstance(node, ast.BinOp) and isinstance(first, int):
            found = [node.left, node.right][first : first + 1]
        else:
            return None
        for index in inner:
            of = found[0] if found else None
            found = (
                of.elts[index : index + 1] if isinstance(of, ast.List | ast.Tuple) and isinstance(index, int) else []
            )
        return found[0] if found else None


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Place, Any]:
    return {place_of(path): value for path, value in tree_leaves_with_path({**dict(enumerate(args)), **kwargs})}


def place_of(path: Any) -> Place:
    return tuple(key.idx if isinstance(key, SequenceKey) else key.key for key in path)


def value_in(node: ast.AST, frame: FrameType) -> Any:
    """The value of a name, an attribute or an item; None if it would have to be computed."""
    if isinstance(node, ast.Name):
        outer = frame.f_back if frame.f_code.co_name in _COMPREHENSIONS else None
        known = frame.f_globals | ({} if outer is None else outer.f_locals) | frame.f_locals
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = value_in(node.value, frame)
        return getattr(owner, node.attr, None) if isinstance(owner, nn.Module | nn.Parameter | ModuleType) else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner, key = value_in(node.value, frame), cast(Any, node.slice.value)
        with suppress(LookupError, TypeError):
            return owner[key] if isinstance(owner, dict | list | tuple) else None
    return None


def limits_of_dtype(line: CodeLine, names: Names) -> Iterator[CodeEdit]:
    """Edits that put the limit of a tensor's dtype in place of a constant beyond it, such as that of a mask."""
    for block, at in blocks_around(line)[:1]:
        nodes = [*ast.walk(block[at])]
        tensor = next((text for node in nodes if is_load(node) and (text := ast.unparse(node)) in names.half), None)
        for node in nodes if tensor is not None else ():
            value = _number(node, names) if isinstance(node, ast.expr) else None
            if (
                isinstance(node, ast.expr)
                and value is not None
                and math.inf > abs(value) > torch.finfo(torch.float16).max
            ):
                limit = f"{names.torch or 'torch'}.finfo({tensor}.dtype).{'max' if value > 0 else 'min'}"
                yield CodeEdit.of(line.file, [Splice.instead(node, limit)])
                return


def _number(node: ast.AST, names: Names) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand, names)
        return None if value is None else -value
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, int | float) else None
    return names.numbers.get(ast.unparse(node))


def is_load(node: ast.AST) -> TypeGuard[ast.expr]:
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load)


def _is_own_function(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def blocks_around(line: CodeLine) -> list[tuple[Sequence[ast.stmt], int]]:
    """The blocks of statements around a line within its function, the innermost first, and which statement it is in."""
    found: list[tuple[Sequence[ast.stmt], int]] = []
    node: ast.AST | None = tree_of(line.file)
    while node is not None:
        blocks = [getattr(node, name, None) or [] for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(node, "handlers", ())]
        around = (
            (block, n)
            for block in blocks
            if isinstance(block, list)
            for n, own in enumerate(block)
            if spans(own, line.number)
        )
        block, at = next(around, ([], 0))
        node = block[at] if block else None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = []
        elif node is not None:
            found.insert(0, (block, at))
    return found


def spans(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)
