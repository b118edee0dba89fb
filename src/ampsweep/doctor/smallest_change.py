"""The smallest change with which a trial of a training goes right: of a line, of modules, or of the precision mode."""

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.code_edits import CodeEdit, Splice, tree_of
from ampsweep.doctor.diagnosis import Change, kept_in_float32
from ampsweep.doctor.examined_training import ExaminedTraining
from ampsweep.doctor.float32_edits import names_at, smallest_edit
from ampsweep.doctor.loss.variant import Variant
from ampsweep.doctor.replay import OutOfTimeError, Replay
from ampsweep.user_code import CodeLine

_CASTS: Final = ("half", "bfloat16", "to", "type", "type_as")
_FIRST_STEPS: Final = 2  # in which a line that computes state first runs


def smallest_change(
    examined: ExaminedTraining,
    place: str | None,
    modules: Sequence[Sequence[str]],
    mends: Callable[[Replay], bool],
    also: Callable[[Variant], bool] | None = None,
) -> Change | None:
    """The first change that `mends` and `also` accept. In order: edits of the line, modules in float32 (each of some
    sets), autocast with float32 parameters. None if there is none, or no time for it."""
    precision = examined.config.precision
    autocast = examined.device.type if precision.autocast else None

    def is_mended(changed: Variant) -> bool:
        try:
            with changed.edited():
                if not mends(changed.replay(examined)):
                    return False
        except Exception:  # noqa: BLE001  the model's own code may raise anything
            return False
        return also is None or also(changed)

    def is_mended_by(edit: CodeEdit) -> bool:
        return is_mended(Variant(edit=edit))

    try:
        if isinstance(place, CodeLine) and (names := names_at(examined.replay(), place, _FIRST_STEPS)) is not None:
            edit = next(filter(is_mended_by, _in_float32(place)), None)
            edit = edit or smallest_edit(place, names, is_mended_by, autocast=autocast)
            if edit is not None:
                return Change(code=edit.patch)
        for kept in modules if precision.autocast else ():
            if any(kept) and is_mended(Variant(kept=frozenset(kept))):
                return Change(overrides=[kept_in_float32(precision, kept)])
        mode = "amp_fp16" if precision.dtype == "float16" else "amp_bf16"
        if not precision.autocast and is_mended(Variant(precision=PRECISION_MODES[mode])):
            return Change(overrides=[f"precision={mode}"])
    except OutOfTimeError:
        pass
    return None


def _in_float32(line: CodeLine) -> Iterator[CodeEdit]:
    """Edits of a line that make or cast a tensor in float32 in place of another dtype."""
    for call in ast.walk(tree_of(line.file)):
        if not isinstance(call, ast.Call) or not call.lineno <= line.number <= (call.end_lineno or call.lineno):
            continue
        end = Splice.after(call, "").start
        for named in (keyword.value for keyword in call.keywords if keyword.arg == "dtype"):
            yield CodeEdit.of(line.file, [Splice.instead(named, "torch.float32")])
        if isinstance(call.func, ast.Attribute) and call.func.attr in _CASTS:
            row, column = Splice.after(call.func, "").start
            begin = row, column - len(call.func.attr.encode()) - 1
            yield CodeEdit.of(line.file, [Splice(begin, end, ".float()")])
