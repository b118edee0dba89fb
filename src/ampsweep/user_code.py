"""The user's own code, neither ours nor a library's: its line in an error or a stack, and digests of its modules."""

import hashlib
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

_SUITE: Final = Path(__file__).parent
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_TORCH: Final = frozenset({"torch", "torchgen", "functorch"})
_STANDARD_LIBRARY: Final = Path(sysconfig.get_path("stdlib")).resolve()


def is_own_source(path: Path) -> bool:
    """Return True for a source file of the user: not of the suite, an installed package or Python."""
    path = path.resolve()
    if path.suffix != ".py" or path.is_relative_to(_SUITE) or _INSTALLED & set(path.parts):
        return False
    return not path.is_relative_to(_STANDARD_LIBRARY) and path != _SUITE.parents[1] / "train.py"


def is_own_class(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and hasattr(kind, "__dict__") and is_own_source(Path(file))


def place_of(error: BaseException) -> str | None:
    """`nets.py, line 12`, where the error or its cause was raised; None outside the user's code."""
    for link in chain_of(error):
        frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(link.__traceback__)]
        if isinstance(link, SyntaxError) and link.filename is not None:
            frames.append((link.filename, link.lineno or 1))
        if (found := _innermost(frames)) is not None:
            return found
    return None


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes and contexts, the nearest first, even if its traceback would not show them."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def place_in_thread(thread: int) -> str | None:
    """The line of the user's code that a thread runs now, as `place_of` writes it."""
    frames = [(frame.f_code.co_filename, frame.f_lineno) for frame in _outwards(sys._current_frames().get(thread))]
    return _innermost(frames[::-1])


class CodeLine(str):
    """`nets.py, line 12`, with the file and the number of the line."""

    file: str
    number: int

    @staticmethod
    def of(frame: FrameType) -> "CodeLine":
        file, number = frame.f_code.co_filename, frame.f_lineno
        line = CodeLine(f"{_shown_of_library(file)}, line {number}")
        line.file, line.number = file, number
        return line


def place_of_caller() -> CodeLine | None:
    """`nets.py, line 12`: the innermost line of a model or a task on the stack, not torch's; None if there is none."""
    frame = frame_of_caller()
    return None if frame is None else CodeLine.of(frame)


def frame_of_caller() -> FrameType | None:
    return next((f for f in _outwards(sys._getframe(1)) if _is_of_a_model(f.f_code.co_filename)), None)


def frame_below(stack: FrameType | None, outermost: CodeType) -> FrameType | None:
    """The innermost frame of the user's own code on a stack, or else of a model or a task; None outside `outermost`."""
    inner: list[FrameType] = []
    for frame in _outwards(stack):
        if frame.f_code is outermost:
            own = (frame for frame in inner if _is_own(frame.f_code.co_filename))
            return next(own, next((frame for frame in inner if _is_of_a_model(frame.f_code.co_filename)), None))
        inner.append(frame)
    return None


@cache
def _is_own(file: str) -> bool:
    return not file.startswith("<") and is_own_source(Path(file))


@cache
def _is_of_a_model(file: str) -> bool:
    path = Path(file)
    if file.startswith("<"):
        return False
    if path.is_relative_to(_SUITE):
        return path.relative_to(_SUITE).parts[0] in ("models", "tasks")
    if _INSTALLED & set(path.parts):
        return not _TORCH & set(path.parts)
    return is_own_source(path)


def _shown_of_library(file: str) -> Path:
    path = Path(file)
    if path.is_relative_to(_SUITE):
        return path.relative_to(_SUITE.parent)
    for number, part in enumerate(path.parts):
        if part in _INSTALLED:
            return Path(*path.parts[number + 1 :])
    return shown_path(path)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _innermost(frames: list[tuple[str, int]]) -> str | None:
    own = ((file, line) for file, line in reversed(frames) if not file.startswith("<") and is_own_source(Path(file)))
    return next((f"{shown_path(Path(file))}, line {line}" for file, line in own), None)


def shown_path(path: Path) -> Path:
    """The path relative to the working directory, if it lies below it."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except (ValueError, OSError):  # elsewhere, or the working directory does not exist any more
        return path


def own_code(*parts: Any) -> dict[str, str]:
    """Map each of the user's own modules that built `parts` of a config to eight hex digits of its source's SHA-256.
    These are the imported modules of the `_target_`s, and all modules whose functions, classes, objects or submodules
    they name, without installed modules and the suite's."""
    modules = [found for part in parts for found in _modules_of(part)]
    digests: dict[str, str] = {}
    while modules:
        module = modules.pop()
        source = _own_source(module)
        if source is None or module.__name__ in digests:
            continue
        digests[module.__name__] = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
        modules += _named_by(module)
    return dict(sorted(digests.items()))


def _modules_of(value: Any) -> Iterator[ModuleType]:
    if isinstance(value, list):
        for item in value:
            yield from _modules_of(item)
    if isinstance(value, dict):
        name = str(value.get("_target_", ""))
        while name and name not in sys.modules:
            name = name.rpartition(".")[0]
        if name:
            yield sys.modules[name]
        for item in value.values():
            yield from _modules_of(item)


def _named_by(module: ModuleType) -> Iterator[ModuleType]:
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value
            continue
        # Not the instance's own attribute: a lazy object would be loaded.
        name = (value if isinstance(value, type | FunctionType) else type(value)).__module__
        if isinstance(name, str) and name in sys.modules:
            yield sys.modules[name]


def _own_source(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "ampsweep":
        return None
    path = Path(file).resolve()
    return path if is_own_source(path) and path.is_file() else None
