"""The smallest edit of a function's code that computes what goes wrong in float32."""

import ast
import linecache
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from ampsweep.doctor.code_edits import CodeEdit, Splice, tree_of
from ampsweep.doctor.replay import Replay
from ampsweep.observe.calls import Call, observe
from ampsweep.user_code import CodeLine, frame_of_caller, is_own_source

_OF_NO_VALUES: Final = frozenset(
    ("shape", "dtype", "device", "ndim", "size", "dim", "numel", "new_zeros", "new_ones", "new_full", "new_tensor")
)
"""Attributes of tensors that no value is computed from."""
_COMPREHENSIONS: Final = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")
_MAX_FLOAT16: Final = torch.finfo(torch.float16).max
_MOST_LINES: Final = 16  # of a longer edit nobody sees what it does


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
        nodes = [node for node in ast.walk(tree_of(frame.f_code.co_filename)) if _is_load(node)]
        values = {ast.unparse(node): value_in(node, frame) for node in nodes}
        return Names(
            half=frozenset(name for name, value in values.items() if _is_half(value)),
            modules=frozenset(name for name, value in values.items() if isinstance(value, nn.Module)),
            numbers={name: value for name, value in values.items() if type(value) in (int, float)},
            functions=frozenset(name for name, value in values.items() if _is_own_function(value)),
            torch=next((name for name, value in values.items() if value is torch), None),
        )


def names_at(replay: Replay, line: CodeLine, num_steps: int) -> Names | None:
    """What expressions stand for when a line first calls an operator within some steps; None if it does not."""
    found: list[Names] = []

    def on_call(call: Call, *_: object) -> None:
        frame = frame_of_caller() if call.place == line and call.phase == "forward" and not found else None
        if frame is not None:
            found.append(Names.of(frame))

    with observe(replay.model, on_call):
        for _ in range(num_steps):
            if not found:
                replay.step()
    return found[0] if found else None


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


def smallest_edit(
    line: CodeLine, names: Names, mends: Callable[[CodeEdit], bool], *, autocast: str | None
) -> CodeEdit | None:
    """The fewest statements around a line that mend a training by computing in float32; None if no such edit does.

    A statement gets its half-precision tensors as float32; where autocast, on a device of that type, would cast them
    down again, it is switched off. All statements around are added, and then left out if they are not needed.
    """
    if not is_own_source(Path(line.file)):
        return None

    def mending(block: Sequence[ast.stmt], first: int, end: int) -> CodeEdit | None:
        for off in dict.fromkeys((None, autocast)):
            edit = _Region(line.file, block[first:end], names, off, casts_back=autocast is None).edit()
            if edit is not None and mends(edit):
                return edit
        return None

    for block, at in _blocks(line):
        if (found := mending(block, at, at + 1)) is not None:
            return found
        first, end = 0, len(block)
        found = mending(block, first, end) if end > 1 else None
        if found is None:
            continue
        fails = at
        while end - fails > 1:
            middle = (fails + end) // 2
            shorter = mending(block, first, middle)
            found, fails, end = (found, middle, end) if shorter is None else (shorter, fails, middle)
        fails = at + 1
        while fails - first > 1:
            middle = (fails + first) // 2
            shorter = mending(block, middle, end)
            found, fails, first = (found, middle, first) if shorter is None else (shorter, fails, middle)
        last = block[end - 1]
        return found if (last.end_lineno or 0) - block[first].lineno < _MOST_LINES else None
    return None


def limits_of_dtype(line: CodeLine, names: Names) -> Iterator[CodeEdit]:
    """Edits that put the limit of a tensor's dtype in place of a constant beyond it, such as that of a mask."""
    for block, at in _blocks(line)[:1]:
        nodes = [*ast.walk(block[at])]
        tensor = next((text for node in nodes if _is_load(node) and (text := ast.unparse(node)) in names.half), None)
        for node in nodes if tensor is not None else ():
            value = _number(node, names) if isinstance(node, ast.expr) else None
            if (
                isinstance(node, ast.expr)
                and value is not None
                and math.inf > abs(value) > torch.finfo(torch.float16).max
            ):
                start, end = Splice.before(node, "").start, Splice.after(node, "").start
                limit = f"{names.torch or 'torch'}.finfo({tensor}.dtype).{'max' if value > 0 else 'min'}"
                yield CodeEdit.of(line.file, [Splice(start, end, limit)])
                return


def own_function_edit(line: CodeLine, names: Names, device_type: str) -> CodeEdit | None:
    """The edit that lets autocast know of an `autograd.Function` around a line; None if there is none."""
    for node in ast.walk(tree_of(line.file)):
        if isinstance(node, ast.ClassDef) and _spans(node, line) and node.name in names.functions:
            passes = {own.name: own for own in node.body if isinstance(own, ast.FunctionDef)}
            decorators = {"forward": "custom_fwd", "backward": "custom_bwd"}
            if {*decorators} <= {*passes}:
                lines = {
                    passes[name]: f'@{names.torch or "torch"}.amp.{own}(device_type="{device_type}")\n'
                    for name, own in decorators.items()
                }
                splices = [Splice.before(own, text + " " * own.col_offset) for own, text in lines.items()]
                return CodeEdit.of(line.file, splices, "let autocast cast the operands in both of its passes")
    return None


def _number(node: ast.AST, names: Names) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand, names)
        return None if value is None else -value
    if isinstance(node, ast.Constant):
        return float(node.value) if isinstance(node.value, int | float) else None
    return names.numbers.get(ast.unparse(node))


@dataclass(frozen=True)
class _Region:
    file: str
    statements: Sequence[ast.stmt]
    names: Names
    off: str | None  # the type of the device for which autocast is switched off
    casts_back: bool  # what it ends with gets the dtype that it had

    def edit(self) -> CodeEdit | None:
        wide = [*self._wide(self.statements, set())]
        if not wide:
            return None
        splices = [splice for node in wide for splice in Splice.around(node, ".float()")]
        tensor = next((ast.unparse(node) for node in wide if not isinstance(node, ast.Call)), None)
        last = self.statements[-1]
        if self.casts_back:
            value = getattr(last, "value", None) if isinstance(last, ast.Assign | ast.Return) else None
            if value is None or tensor is None:
                return None
            splices = [Splice.before(value, "("), *splices, Splice.after(value, f").to({tensor}.dtype)")]
        if self.off is not None:
            device = f'"{self.off}"' if tensor is None else f"{tensor}.device.type"
            splices = [*self._without_autocast(device), *splices]
        edit = CodeEdit.of(self.file, splices)
        try:
            ast.parse(edit.new)
        except SyntaxError:  # statements that share a line, or a text of several lines
            return None
        return edit

    def _without_autocast(self, device: str) -> Iterator[Splice]:
        first, last = self.statements[0], self.statements[-1]
        lines, margin = linecache.getlines(self.file), " " * first.col_offset
        imported = "" if self.names.torch else f"{margin}import torch\n"
        text = f"{imported}{margin}with {self.names.torch or 'torch'}.autocast({device}, enabled=False):\n"
        number = min(node.lineno for node in (first, *getattr(first, "decorator_list", ())))
        yield Splice((number, 0), (number, 0), text)
        for inner in range(number, (last.end_lineno or last.lineno) + 1):
            if lines[inner - 1].strip():
                yield Splice((inner, 0), (inner, 0), "    ")

    def _wide(self, nodes: Iterable[ast.AST], made: set[str]) -> Iterator[ast.expr]:
        """The expressions that bring half precision into the statements, in order; `made`: names assigned in them."""
        for node in nodes:
            if isinstance(node, ast.expr) and self._is_half(node, made):
                yield node
            elif isinstance(node, ast.Attribute) and node.attr in _OF_NO_VALUES:
                continue
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For):
                source = node.iter if isinstance(node, ast.For) else node.value
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from self._wide([source] if source is not None else [], made)
                made |= {name.id for of in targets for name in ast.walk(of) if isinstance(name, ast.Name)}
                yield from self._wide(node.body if isinstance(node, ast.For) else (), made)
            else:
                yield from self._wide(ast.iter_child_nodes(node), made)

    def _is_half(self, node: ast.expr, made: set[str]) -> bool:
        if isinstance(node, ast.Call):
            return self.off is None and ast.unparse(node.func) in self.names.modules
        if not _is_load(node) or ast.unparse(node) not in self.names.half:
            return False
        root: ast.expr = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        return not (isinstance(root, ast.Name) and root.id in made)


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load)


def _is_own_function(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _blocks(line: CodeLine) -> list[tuple[Sequence[ast.stmt], int]]:
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
            if _spans(own, line)
        )
        block, at = next(around, ([], 0))
        node = block[at] if block else None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = []
        elif node is not None:
            found.insert(0, (block, at))
    return found


def _spans(statement: ast.stmt, line: CodeLine) -> bool:
    return statement.lineno <= line.number <= (statement.end_lineno or statement.lineno)
