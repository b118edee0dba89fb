"""Autocast modes of which FSDP2 does the casts, as it gathers parameters."""

from contextlib import AbstractContextManager, nullcontext

from ampsweep.precision.precision import Precision


class CastByPolicy(Precision):
    """A mode whose forward pass computes wholly in the autocast dtype, for the parameters come in it.

    Autocast would keep some operators in float32; here none is. An evaluation computes as the training does.
    """

    casts_by_policy = True

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def eval_autocast(self, how: str | None = None) -> AbstractContextManager[None]:
        return nullcontext()
