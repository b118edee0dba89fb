"""The end of a training: requests to stop, the reason why it ended, and the numbers that force an end."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

COLLAPSED_SCALE = 2.0**-24
"""The smallest float16 number: a scale below it cannot be the cause of an overflow, so the loss itself is broken."""
_HOPELESS: Final = 20
"""Steps without a finite loss and without a change of the parameters after which a training ends."""
_ENDS_WITHOUT_LOSS: Final = 3
"""The same of a training's last steps: nothing is lost by the end, and broken batches do not come three in a row."""
_FALL: Final = 2.0**-10
"""The fall of the scale over a training's last steps, all skipped though their loss is finite, which says that it is
broken: the parameters, for which the scale was right before, have not changed meanwhile."""


@dataclass(frozen=True)
class Ending:
    """The reason why training ended."""

    status: Literal["completed", "diverged", "interrupted"]
    error: str | None = None
    cut_short: str | None = None


class DivergenceWatch:
    """Decides from the rows of a training, in their order, and at its end whether it has diverged.

    A scaler skips steps whose gradients are not finite, and halves its scale until they are. The loss itself is taken
    before it is scaled: where that is not finite, no scale helps. As long as no step is applied the parameters stay as
    they are, and only another batch could have another loss. If none of `_HOPELESS` batches had a finite one, with 95 %
    confidence fewer than 15 % of all batches have (the rule of three: J. A. Hanley and A. Lippman-Hand, If nothing goes
    wrong, is everything all right?, JAMA 249 (1983)).

    Args:
        backoff_factor: the scaler's.
    """

    def __init__(self, backoff_factor: float) -> None:
        self._backoff_factor = backoff_factor
        self._step = self._applied_at = self._finite_at = 0
        self._applied: float | None = None
        self._loss = self._scale = math.nan

    def row(self, step: int, values: Mapping[str, float]) -> Ending | None:
        """Decide from the numbers of a row whether training must end, and how."""
        scale, loss = values.get("amp/scale"), values.get("train/loss", 0.0)
        if scale is None and not math.isfinite(loss):
            return Ending("diverged", f"the training loss is {loss} at step {step}")
        ending = None if scale is None else self._scaled_row(step, values, loss, scale)
        if ending is None and not math.isfinite(values.get("val/loss", 0.0)):
            return Ending("diverged", f"the validation loss is {values['val/loss']} at step {step}")
        return ending

    def at_end(self, num_skipped: int) -> Ending | None:
        """Decide after the last row whether a training that came to its end was one.

        Args:
            num_skipped: number of steps skipped in a row at the end, as far as it is known without the rows.
        """
        if self._applied is None:
            return None
        num_skipped, scale = max(num_skipped, self._step - self._applied_at), f"the scale is {self._scale:g} by now"
        if self._applied == 0:
            return Ending("diverged", f"none of the {self._step} steps was applied; {scale}")
        if num_skipped >= _ENDS_WITHOUT_LOSS and not math.isfinite(self._loss):
            told = f"the training loss is {self._loss} at step {self._step}"
            return Ending("diverged", f"{told}, and none of the last {num_skipped} steps was applied")
        if self._backoff_factor**num_skipped <= _FALL:
            return Ending("diverged", f"none of the last {num_skipped} of {self._step} steps was applied; {scale}")
        return None

    def _scaled_row(self, step: int, values: Mapping[str, float], loss: float, scale: float) -> Ending | None:
        if scale < COLLAPSED_SCALE:
            return Ending("diverged", f"the scale collapsed to {scale:g} at step {step}")
        applied = values["amp/applied_steps"]
        if applied != self._applied:
            self._applied_at = self._finite_at = step
        elif math.isfinite(loss):
            self._finite_at = step
        self._step, self._applied, self._loss, self._scale = step, applied, loss, scale
        if step - self._finite_at < _HOPELESS:
            return None
        since = f"no step since step {self._finite_at} was applied"
        return Ending("diverged", f"the training loss is {loss} at step {step}, and {since}")
