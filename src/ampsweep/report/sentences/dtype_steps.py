"""The steps away from float32 in words: what changes from one arm to the next."""

from typing import Final

from ampsweep.analysis.dtype_steps import DtypeKind, DtypeStep, SettingChange

HEADING: Final = "Each next step away from float32"

DTYPE_NAMES: Final[dict[DtypeKind, str]] = {
    "compute": "compute",
    "parameters": "parameters",
    "gradients": "accumulation",
    "reduction": "reduction",
    "optimizer_state": "optimizer state",
}

METHOD: Final = (
    "arms in the order of their narrowest dtype, then of the bits of all five; each is held against the arm before it "
    "that differs in fewest of the five dtypes, in the pairs of runs of one seed that both have: step time before over "
    "after (above 1x is faster), peak before minus after, final validation loss after minus before (positive is "
    "worse), with 95% t-intervals"
)


def changes(of: DtypeStep) -> str:
    """Tell what a step changes, with dtypes that change alike together: 'parameters, reduction float32 to bfloat16'."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in of.dtypes:
        alike.setdefault((one.before, one.after), []).append(DTYPE_NAMES[one.kind])
    told = [f"{', '.join(names)} {before} to {after}" for (before, after), names in alike.items()]
    return "; ".join([*told, *map(_setting, of.settings)]) or "how it computes, no dtype"


def _setting(of: SettingChange) -> str:
    if of.after is None:
        return f"without {of.name}={of.before}"
    return f"{of.name}={of.after}" + ("" if of.before is None else f" (was {of.before})")
