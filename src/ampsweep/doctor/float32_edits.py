"""The smallest edit of a function's code that computes what goes wrong in float32."""

import ast
import linecache
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ampsweep.doctor.code_edits import CodeEdit, Splice, tree_of
from ampsweep.doctor.replay import Replay
from ampsweep.doctor.running_code import Names, blocks_around, is_load, spans
from ampsweep.observe.calls import Call, observe
from ampsweep.user_code import CodeLine, frame_of_caller, is_own_source

_OF_NO_VALUES: Final = frozenset(
    ("shape", "dtype", "device", "ndim", "size", "dim", "numel", "new_zeros", "new_ones", "new_full", "new_tensor")
)
"""Attributes of tensors that no value is computed from."""
_CASTING: Final = frozenset(("to", "type", "type_as", "half", "bfloat16"))
_MOST_LINES: Final = 16  # of a longer edit nobody sees what it does


LineEdits = Callable[[CodeLine, Names], Iterator[CodeEdit]]
"""Makes edits of a line that are tried before computing it in float32."""


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


def smallest_edit(
    line: CodeLine, names: Names, mends: Callable[[CodeEdit], bool], *, autocast: str | None
) -> CodeEdit | None:
    """The fewest statements around a line that mend a training by computing in float32; None if no such edit does.

    A statement gets its half-precision tensors as float32; where autocast, on a device of that type, would cast them
    down again, it is switched off, and without autocast its result is cast back if it must be. All statements around
    are added, and then left out if they are not needed.
    """
    if not is_own_source(Path(line.file)):
        return None

    def mending(block: Sequence[ast.stmt], first: int, end: int) -> CodeEdit | None:
        for changes_more in (False, True):
            off, casts_back = (autocast, autocast is None) if changes_more else (None, False)
            edit = _Region(line.file, block[first:end], names, off, casts_back).edit()
            if edit is not None and mends(edit):
                return edit
        return None

    for block, at in blocks_around(line):
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


def edit_of_running(
    first: str | None, last: str | None, edits: LineEdits, *, autocast: str | None, casts_back: bool
) -> CodeEdit | None:
    """An edit of the running line, the last, or else that which computes in float32 the statements of its block from
    the first on; None if the function is not the user's, or casts by itself."""
    frame = frame_of_caller()
    line = None if frame is None else CodeLine.of(frame)
    if frame is None or line is None or line != last or not is_own_source(Path(line.file)):
        return None
    names, (block, at) = Names.of(frame), blocks_around(line)[0]
    begin = first.number if isinstance(first, CodeLine) and first.file == line.file else line.number
    statements = block[next((n for n in range(at) if spans(block[n], begin)), at) : at + 1]
    nodes = (node for own in statements for node in ast.walk(own) if isinstance(node, ast.Attribute))
    is_casting = any(node.attr in _CASTING for node in nodes)
    wide = None if is_casting else _Region(line.file, statements, names, autocast, casts_back).edit()
    return next(edits(line, names), wide)


def own_function_edit(line: CodeLine, names: Names, device_type: str) -> CodeEdit | None:
    """The edit that lets autocast know of an `autograd.Function` around a line; None if there is none."""
    for node in ast.walk(tree_of(line.file)):
        if isinstance(node, ast.ClassDef) and spans(node, line.number) and node.name in names.functions:
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


@dataclass(frozen=True)
class _Region:
    file: str
    statements: Sequence[ast.stmt]
    names: Names
    off: str | None  # the type of the device for which autocast is switched off
    casts_back: bool  # what it ends with gets the dtype that it had

    def edit(self) -> CodeEdit | None:
        wide = [*self._wide(self.statements, set())]
        called = {ast.unparse(n.func) for own in self.statements for n in ast.walk(own) if isinstance(n, ast.Call)}
        if not wide and (self.off is None or called & self.names.modules):
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
            elif (isinstance(node, ast.Attribute) and node.attr in _OF_NO_VALUES) or (
                isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
            ):
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
        if not is_load(node) or ast.unparse(node) not in self.names.half:
            return False
        root: ast.expr = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        return not (isinstance(root, ast.Name) and root.id in made)
