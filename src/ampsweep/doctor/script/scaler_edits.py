"""Edits of a training's loop that use a GradScaler as torch documents it, with the loop's own names."""

import ast
from collections.abc import Sequence

from ampsweep.doctor.code_edits import CodeEdit, Splice, tree_of
from ampsweep.doctor.running_code import blocks_around, spans
from ampsweep.user_code import CodeLine

Stack = Sequence[tuple[str, int]]
"""Files and lines that run at a time."""


def scaled(backward: CodeLine, step: CodeLine) -> CodeEdit | None:
    """Scale the loss of a backward pass whose scaler takes the step."""
    loss, stepped = _call(backward, "backward", 0), _call(step, "step", 1)
    return CodeEdit.of(backward.file, _given_to(f"{stepped[1]}.scale", loss[0])) if loss and stepped else None


def unscaled(use: Stack, step: CodeLine) -> CodeEdit | None:
    """Unscale gradients before they are first used, in the function that calls the scaler's step."""
    stepped = _call(step, "step", 1)
    splices = _unscale(use, step, stepped[1], ast.unparse(stepped[2].args[0])) if stepped else []
    return CodeEdit.of(step.file, splices) if splices else None


def with_scaler(use: Stack, backward: CodeLine, step: CodeLine, device_type: str) -> CodeEdit | None:
    """Make a scaler before the loop and use it; None where backward and step are in no loop of one function."""
    loss, stepped = _call(backward, "backward", 0), _call(step, "step", 0)
    around = [block[at] for block, at in blocks_around(backward)[::-1]]
    loops = [own for own in around if isinstance(own, ast.For | ast.While) and spans(own, step.number)]
    if not (loss and stepped and loops) or backward.file != step.file:
        return None
    scaler, (_, optimizer, call) = "grad_scaler", stepped
    made = f'{scaler} = torch.amp.GradScaler("{device_type}")\n{" " * loops[0].col_offset}'
    update = f"\n{' ' * next(block[at].col_offset for block, at in blocks_around(step))}{scaler}.update()"
    steps = Splice.instead(call, f"{scaler}.step({optimizer}){update}")
    splices = [Splice.before(loops[0], made), *_given_to(f"{scaler}.scale", loss[0]), steps]
    return CodeEdit.of(step.file, [*splices, *_unscale(use, step, scaler, optimizer)])


def for_device(autocast: CodeLine, asked: str, device_type: str) -> CodeEdit | None:
    """Ask for autocast on another device, where the line has the name of the device."""
    nodes = (node for node in ast.walk(tree_of(autocast.file)) if spans(node, autocast.number))
    names = [own for own in nodes if isinstance(own, ast.Constant) and own.value == asked]
    return CodeEdit.of(autocast.file, [Splice.instead(names[0], f'"{device_type}"')]) if names else None


def _call(line: CodeLine, method: str, num_arguments: int) -> tuple[ast.expr, str, ast.Call] | None:
    """What a method is called on in a line, its source, and the call."""
    for node in ast.walk(tree_of(line.file)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            own = node.func.value, ast.unparse(node.func.value), node
            if spans(node, line.number) and len(node.args) == num_arguments:
                return own
    return None


def _given_to(function: str, node: ast.expr) -> list[Splice]:
    return [Splice.before(node, f"{function}("), Splice.after(node, ")")]


def _unscale(use: Stack, step: CodeLine, scaler: str, optimizer: str) -> list[Splice]:
    numbers = [number for file, number in use if file == step.file]
    for own in (own for block, _ in blocks_around(step) for own in block if not spans(own, step.number)):
        if any(spans(own, number) for number in numbers):
            return [Splice.before(own, f"{scaler}.unscale_({optimizer})\n{' ' * own.col_offset}")]
    return []
