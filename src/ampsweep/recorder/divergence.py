"""The end of a training: its status and reason, and the detection of divergence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

COLLAPSED_SCALE = 2.0**-24
"""The smallest float16 number. A smaller scale cannot cause an overflow: the loss itself is broken."""
_MAX_STEPS_WITHOUT_LOSS: Final = 20
"""Steps without a finite loss and without an applied step after which a training ends."""
_MAX_LAST_STEPS_WITHOUT_LOSS: Final = 3
"""The same for a training's last steps: three broken batches in a row are unlikely, and no later step could help."""
_MAX_FALL: Final = 2.0**-10
"""Fall of the scale over last steps that were all skipped despite finite losses. The training is then broken: the
parameters have not changed since the scale was right for them."""


@dataclass(frozen=True)
class Ending:
    status: Literal["completed", "diverged", "interrupted"]
    error: str | None = None
    cut_short: str | None = None
    stopped_early: bool = False  # cut short by the training's own rule


class DivergenceWatch:
    """Decides from the rows of a training, in order, and at its end whether it has diverged.

    A scaler skips steps with non-finite gradients and lowers its scale until they are finite. The loss is taken before
    it is scaled: if it is not finite, no scale helps, and while steps are skipped only another batch can change it.
    If none of 20 batches had a finite loss, then with 95 % confidence fewer than 15 % of all batches have (the rule of
    three: J. A. Hanley and A. Lippman-Hand, If nothing goes wrong, is everything all right?, JAMA 249 (1983)).
    """

    def __init__(self, backoff_factor: float) -> None:
        self._backoff_factor = backoff_factor
        self._step = self._finite_at = 0
        self._applied: float | None = None
        self._loss = self._scale = math.nan

    def row(self, step: int, values: Mapping[str, float]) -> Ending | None:
        """Return how training ends after this row; None if it goes on."""
        scale, loss = values.get("amp/scale"), values.get("train/loss", 0.0)
        if scale is None and not math.isfinite(loss):
            return Ending("diverged", f"the training loss is {loss} at step {step}")
        ending = None if scale is None else self._scaled_row(step, values, loss, scale)
        if ending is None and not math.isfinite(values.get("val/loss", 0.0)):
            return Ending("diverged", f"the validation loss is {values['val/loss']} at step {step}")
        return ending

    def at_end(self, num_skipped: int) -> Ending | None:
        """Return a divergence seen only at the end, whose last `num_skipped` steps were all skipped."""
        if self._applied is None:
            return None
        scale = f"the scale is {self._scale:g} by now"
        if self._applied == 0:
            return Ending("diverged", f"none of the {self._step} steps was applied; {scale}")
        if num_skipped >= _MAX_LAST_STEPS_WITHOUT_LOSS and not math.isfinite(self._loss):
            loss = f"the training loss is {self._loss} at step {self._step}"
            return Ending("diverged", f"{loss}, and none of the last {num_skipped} steps was applied")
        if self._backoff_factor**num_skipped <= _MAX_FALL:
            return Ending("diverged", f"none of the last {num_skipped} of {self._step} steps was applied; {scale}")
        return None

    def _scaled_row(self, step: int, values: Mapping[str, float], loss: float, scale: float) -> Ending | None:
        if scale < COLLAPSED_SCALE:
            return Ending("diverged", f"the scale collapsed to {scale:g} at step {step}")
        applied = values["amp/applied_steps"]
        if applied != self._applied or math.isfinite(loss):
            self._finite_at = step
        self._step, self._applied, self._loss, self._scale = step, applied, loss, scale
        if step - self._finite_at < _MAX_STEPS_WITHOUT_LOSS:
            return None
        since = f"no step since step {self._finite_at} was applied"
        return Ending("diverged", f"the training loss is {loss} at step {step}, and {since}")
