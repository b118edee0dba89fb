"""Known pitfalls of an arm's dtypes in words, each with its source."""

from typing import Final

from ampsweep.analysis.pitfalls import Pitfall
from ampsweep.numeric_formats import FORMATS
from ampsweep.text import number

_UPDATES: Final = "P. Zamirai et al., Revisiting BFloat16 Training, arXiv:2010.06192"
_SCALING: Final = "P. Micikevicius et al., Mixed Precision Training, arXiv:1710.03740"
_SUMS: Final = "N. J. Higham, The Accuracy of Floating Point Summation, SIAM J. Sci. Comput. 14 (1993)"


def pitfall(of: Pitfall) -> str:
    """Say what may go wrong in these dtypes, with the figures and the source."""
    figures = of.figures
    match of.kind:
        case "vanishing updates":
            lost = _share(figures["lost_below"])
            return f"updates of less than {lost} of a weight vanish, as {of.dtype} parameters are rounded ({_UPDATES})"
        case "stuck moment":
            decay, lost = _share(figures["decay"]), _share(figures["lost_below"])
            return (
                f"the optimizer's second moment cannot fall: a step takes {decay} off it, and {of.dtype} loses changes "
                f"of less than {lost} ({FORMATS[of.dtype].digits} binary digits, torch.finfo)"
            )
        case "no scaler":
            zero = f"{figures['zero_below']:.1e}"
            return f"gradients below {zero} become zero in {of.dtype}, and no scaler lifts them ({_SCALING})"
        case "sums over micro-batches" | "sums over ranks":
            what = "micro-batches" if of.kind == "sums over micro-batches" else "ranks"
            lost = _share(figures["lost_below"])
            return (
                f"the gradients of {figures['num_summed']:.0f} {what} are added up in {of.dtype}, which loses what is "
                f"less than {lost} of a sum ({_SUMS})"
            )


def _share(value: float) -> str:
    return f"{number(100 * value, 2)}%"
