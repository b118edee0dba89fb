"""Edits of a training's code that let it compute and keep its values in half precision."""

import ast
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from inspect import unwrap
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ampsweep.doctor.code_edits import CodeEdit, Splice, tree_of
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.running_code import Place, RunningCode, arguments_of, blocks_around, spans, value_in
from ampsweep.observe.calls import Call, observe
from ampsweep.observe.functions import CallIdentity, FunctionMode
from ampsweep.user_code import CodeLine, frame_of_caller, is_own_source

Tensors = Mapping[Place, Tensor]
_CASTS = ("float", "to", "type", "type_as")  # methods
_Make = Callable[[RunningCode, Tensors], CodeEdit | None]


class _CallsOfInterest(FunctionMode):
    def __init__(self, device_type: str, wanted: Sequence[CallIdentity], make: Callable[..., None]) -> None:
        super().__init__(device_type)
        self._wanted, self._make = {*wanted}, make

    def called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        assert self.running is not None
        if self.running.identity in self._wanted:
            self._wanted.remove(self.running.identity)
            self._make(args, kwargs)
        return func(*args, **kwargs)


def edit_at(examined: ExaminedTraining, identity: CallIdentity, make: _Make) -> CodeEdit | None:
    """The edit that `make` makes of the code of a call when a step gets there; None for code of others."""
    return next((edit for code, tensors in codes_at(examined, [identity]) if (edit := make(code, tensors))), None)


def codes_at(examined: ExaminedTraining, identities: Sequence[CallIdentity]) -> list[tuple[RunningCode, Tensors]]:
    """The user's own code of some calls, with the tensors that they get first."""
    found: list[tuple[RunningCode, Tensors]] = []

    def make(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        code = RunningCode.here()
        if code is not None and is_own_source(Path(code.line.file)):
            given = arguments_of(args, kwargs).items()
            found.append((code, {place: value for place, value in given if isinstance(value, Tensor)}))

    replay = examined.replay()
    with _CallsOfInterest(replay.device.type, identities, make).watching():
        replay.step()
    return found


def without_cast(code: RunningCode, _: Tensors) -> CodeEdit | None:
    return _without(code.line, code.expression) if code.calls_method else None


def casts_at(line: CodeLine) -> Iterator[CodeEdit]:
    """Edits of a line that leave out one of its casts."""
    for node in ast.walk(tree_of(line.file)) if is_own_source(Path(line.file)) else ():
        is_cast = isinstance(node, ast.Call) and getattr(node.func, "attr", None) in _CASTS
        if is_cast and spans(node, line.number) and (edit := _without(line, node)) is not None:
            yield edit


def _without(line: CodeLine, cast: ast.AST) -> CodeEdit | None:
    """Leave out a cast; with it the statement, if it does nothing else."""
    if not (isinstance(cast, ast.Call) and isinstance(cast.func, ast.Attribute)):
        return None
    kept, file = cast.func.value, line.file
    block, at = blocks_around(line)[0]
    statement = block[at]
    targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is cast else ()
    if len(block) > 1 and [*map(ast.unparse, targets)] == [ast.unparse(kept)]:
        return CodeEdit.of(file, [Splice((statement.lineno, 0), ((cast.end_lineno or 0) + 1, 0), "")])
    return CodeEdit.of(file, [Splice(Splice.after(kept, "").start, Splice.after(cast, "").start, "")])


def to_half(code: RunningCode, tensors: Tensors) -> CodeEdit | None:
    """Cast what a call gets in float32 to the half precision of the others, and so in its whole statement."""
    half = next((value.dtype for value in tensors.values() if value.dtype in (torch.float16, torch.bfloat16)), None)
    wide = [place for place, value in tensors.items() if value.dtype == torch.float32]
    return None if half is None else code.edit(dict.fromkeys(wide, half), dict(tensors), in_statement=True)


def autocast_on_at(examined: ExaminedTraining, places: Collection[str | None]) -> dict[str, CodeEdit]:
    """Leave autocast on at some lines of calls: the edit of each that needs one, without the decorator that switches
    it off, or with the block's True."""
    found: dict[str, CodeEdit | None] = {}

    def on_call(call: Call, *_: object) -> None:
        if call.place is not None and call.place in places and call.place not in found and call.phase == "forward":
            found[call.place] = next(_switched_on(frame_of_caller()), None)

    replay = examined.replay()
    with observe(replay.model, on_call):
        replay.step()
    return {place: edit for place, edit in found.items() if edit is not None}


def _switched_on(frame: FrameType | None) -> Iterator[CodeEdit]:
    """Edits that leave autocast on in the code of a stack, where a decorator or a block switches it off, or a context
    of the user's own that a block enters."""
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if is_own_source(Path(file)):
            for node in [node for node in ast.walk(tree_of(file)) if spans(node, line)][::-1]:
                for call in getattr(node, "decorator_list", ()):
                    if next(_switches_off(call, frame), None):
                        yield CodeEdit.of(file, [Splice((call.lineno, 0), ((call.end_lineno or 0) + 1, 0), "")])
                for item in node.items if isinstance(node, ast.With) else ():
                    yield from (_with_true(file, value) for value in _switches_off(item.context_expr, frame))
                    yield from _in_own_context(item.context_expr, frame)
        frame = frame.f_back


def _in_own_context(entered: ast.expr, frame: FrameType) -> Iterator[CodeEdit]:
    context = unwrap(value_in(entered.func, frame)) if isinstance(entered, ast.Call) else None
    module, name = (str(getattr(context, known, "")) for known in ("__module__", "__name__"))
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None and is_own_source(Path(file)):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                off = (value for call in ast.walk(node) for value in _switches_off(call, frame))
                yield from (_with_true(file, value) for value in off)


def _with_true(file: str, value: ast.expr) -> CodeEdit:
    return CodeEdit.of(file, [Splice(Splice.before(value, "").start, Splice.after(value, "").start, "True")])


def _switches_off(call: ast.AST, frame: FrameType) -> Iterator[ast.expr]:
    """The argument that switches autocast off in a call that makes a context; none in other calls."""
    if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("autocast"):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        yield from (value for value in given if getattr(value, "value", value_in(value, frame)) is False)


def cast_once(codes: Sequence[tuple[RunningCode, Tensors]], half: torch.dtype) -> CodeEdit | None:
    """Cast what several calls of a function get in float32 once, before the first, and give them the copy."""
    given = (code.values.get(id(value)) for code, of in codes for value in of.values() if value.dtype == torch.float32)
    source = next((ast.unparse(node) for node in given if node is not None), None)
    if source is None:
        return None
    known = [code for code, _ in codes]
    function = blocks_around(known[0].line)[-1][0]
    first = next((own for own in function if any(spans(own, code.line.number) for code in known)), None)
    if first is None:
        return None
    dtype = str(half).rpartition(".")[2]
    copy = f"{source.rpartition('.')[2]}_{dtype}"
    made = f"{' ' * first.col_offset}{copy} = {source}.to({known[0].names.torch or 'torch'}.{dtype})\n"
    nodes = dict.fromkeys(node for code in known for node in ast.walk(code.expression))
    uses = [node for node in nodes if isinstance(node, ast.expr) and ast.unparse(node) == source]
    splices = [Splice(Splice.before(use, "").start, Splice.after(use, "").start, copy) for use in uses]
    return CodeEdit.of(known[0].line.file, [Splice((first.lineno, 0), (first.lineno, 0), made), *splices])


def numbers_for(line: CodeLine) -> Iterator[tuple[str, CodeEdit]]:
    """Edits that let an attribute keep numbers, or at least no graph, in place of tensors, each after the attribute's
    name in the code; those next to a line first."""
    known = ((_stored(node), node) for node in ast.walk(tree_of(line.file)))
    stored = [(found, getattr(node, "lineno", 0)) for found, node in known if found is not None]
    for (name, value), _ in sorted(stored, key=lambda of: abs(of[1] - line.number)):
        for ending in (".item()", ".detach()"):
            yield name, CodeEdit.of(line.file, Splice.around(value, ending))


def _stored(node: ast.AST) -> tuple[str, ast.expr] | None:
    """What a statement adds to what an attribute or a global list holds, after the name of that."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        is_added = node.func.attr in ("append", "appendleft", "add")
        return (ast.unparse(node.func.value), node.args[0]) if is_added else None
    if isinstance(node, ast.Assign | ast.AugAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            holder = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(holder, ast.Attribute) and not isinstance(node.value, ast.List | ast.Dict | ast.Constant):
                return ast.unparse(holder), node.value
    return None
