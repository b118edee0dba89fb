"""The errors of torch.compile that say that this machine cannot compile."""

import re
import sys
from collections.abc import Iterator

from ampsweep.text import first_line, one_line

_ASKED = "trainer.compile=true"


def refusal_by_compiler(error: BaseException) -> str | None:
    """One sentence for an error that says that this machine has no working compiler; None for any other."""
    errors = sys.modules.get("torch._inductor.exc")  # private: their types have no public name
    if errors is None:
        return None
    for one in _chain(error):
        if isinstance(one, errors.InvalidCxxCompiler):
            return f"{_ASKED} needs a C++ compiler, and there is none: install g++, or let the variable CXX name one"
        if isinstance(one, errors.CppCompileError):
            fault = re.search(r"^.*\berror: .*$", one.output, re.MULTILINE)
            return f"{_ASKED}: {one.cmd[0]} cannot compile: {fault[0].strip() if fault else first_line(one.output)}"
        if isinstance(one, errors.TritonMissing | errors.GPUTooOldForTriton):
            return f"{_ASKED}: {one_line(one)}"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it followed from, the nearest first."""
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
