"""What follows the validation metric: the best evaluation, an early end, and ReduceLROnPlateau."""

import math
from collections.abc import Mapping, Sequence

from torch.optim import Optimizer

from ampsweep.config.components import is_plateau
from ampsweep.config.schema import Config, component_name
from ampsweep.config.value_checks import metric_users
from ampsweep.metrics import goal_of
from ampsweep.recorder.divergence import Ending
from ampsweep.records.sections import BestEvaluation
from ampsweep.training.components.instantiate import build_component


class ValidationWatch:
    """Follows `trainer.metric` from evaluation to evaluation. It is the same on all ranks, as the metric is.

    UserError: ReduceLROnPlateau, if that is the scheduler, refuses its settings.
    """

    def __init__(self, config: Config, optimizers: Sequence[Optimizer]) -> None:
        self._config, self._is_needed = config.trainer, any(metric_users(config))
        goal = config.trainer.goal or goal_of(config.trainer.metric)
        self._sign, mode = (-1, "max") if goal == "maximize" else (1, "min")
        settings = {"mode": mode, **config.scheduler, "name": component_name(config.scheduler)}
        scheduled = optimizers if is_plateau(config.scheduler) else ()
        self._plateaus = [build_component("scheduler", settings, optimizer=optimizer) for optimizer in scheduled]
        self.best: BestEvaluation | None = None
        self.evaluations: list[tuple[dict[str, float], int]] = []  # all so far, with their steps
        self._to_beat, self._num_without = math.inf, 0
        """What the metric (if maximized, its negative) must be below by `min_delta`, and evaluations since it was."""

    def follow(self, values: Mapping[str, float], step: int) -> bool:
        """Follow an evaluation; return True if it is the best so far. ValueError: it has no such metric."""
        metric = self._config.metric
        if (value := values.get(metric)) is None:
            if self._is_needed:
                raise ValueError(f"trainer.metric={metric}: an evaluation here gives {', '.join(values) or 'nothing'}")
            return False
        self.evaluations.append(({**values}, step))
        for plateau in self._plateaus:
            plateau.step(value)
        signed, self._num_without = self._sign * value, self._num_without + 1
        if not math.isfinite(value):
            return False
        if signed < self._to_beat - self._config.min_delta:
            self._to_beat, self._num_without = signed, 0
        if self.best is not None and signed >= self._sign * self.best.value:
            return False
        finite = {key: number for key, number in values.items() if math.isfinite(number)}
        self.best = BestEvaluation(metric=metric, step=step, value=value, values=finite)
        return True

    def early_end(self, step: int, num_steps: int) -> Ending | None:
        """How the training ends at this step if its patience is over before its steps are."""
        patience = self._config.patience
        if patience is None or self._num_without < patience or step >= num_steps:
            return None
        best = "" if self.best is None else f", best {self.best.value:g} at step {self.best.step}"
        why = f"trainer.patience={patience} reached by {self._config.metric}{best}"
        return Ending("completed", cut_short=f"{why}, after step {step} of {num_steps}", stopped_early=True)

    def go_on(self, evaluations: Sequence[tuple[Mapping[str, float], int]]) -> None:
        """Follow saved evaluations after those followed so far, by this run's settings, if they have its metric."""
        for values, step in evaluations[len(self.evaluations) :]:
            if self._config.metric in values:
                self.follow(values, step)
