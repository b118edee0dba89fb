"""The arms of a multirun with `report.decide=true`: with seeds to add, with steps that fit the machine, and without
modes that its device only emulates."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from ampsweep.config.compose import Point, Points, compose_each
from ampsweep.config.errors import UserError
from ampsweep.config.identity import workload_hash
from ampsweep.config.schema import SEEDS_FOR_SPEED, Config
from ampsweep.launch.isolated_process import ChildError
from ampsweep.run.request import planned_arm
from ampsweep.run.short_run import ShortRun, short_run
from ampsweep.sweep.preflight import Checked
from ampsweep.text import listed

_MIN_STEPS: Final = 3  # times `trainer.warmup_steps`: fewer would leave too few steps to time


@dataclass(frozen=True, eq=False)
class SeededArm:
    """An arm of a workload with its points: seed by seed, those of `report.max_seeds` and `SEEDS_FOR_SPEED`."""

    workload: str  # equal for the arms that are compared
    arm: str
    points: tuple[Point, ...]
    check: Checked = field(default_factory=Checked)  # of its first point
    time: ShortRun | None = None  # of a run, where it is known

    @property
    def first(self) -> Config:
        return self.points[0].config

    @property
    def is_baseline(self) -> bool:
        return self.arm == self.first.report.baseline

    @property
    def seconds(self) -> float:
        """The expected time of a run; 0 if it is unknown."""
        return 0.0 if self.time is None else self.time.seconds(self.first.trainer, self.check.num_steps or 0)

    def with_steps(self, steps: int) -> "SeededArm":
        points = compose_each([[*point.overrides, f"trainer.steps={steps}"] for point in self.points]).points
        return replace(self, points=points, check=replace(self.check, num_steps=steps))


def seeded_arms(points: Points) -> list[SeededArm]:
    """The arms of a multirun with the seeds given, and with those that follow the largest.

    UserError: more seeds are given, a workload lacks the baseline or another arm, runs would not be trainings from
    scratch, or a launcher would start them before the next can be chosen.
    """
    report = points.points[0].config.report
    if points.launcher != "BasicLauncher":
        raise UserError("report.decide=true chooses each run by those before it, which needs hydra/launcher=basic")
    seeds = list(dict.fromkeys(point.config.seed for point in points.points))
    if len(seeds) > report.max_seeds:
        raise UserError(f"report.max_seeds={report.max_seeds}: {len(seeds)} seeds are given")
    further = count(max(seeds) + 1)
    seeds += [next(further) for _ in range(report.max_seeds + SEEDS_FOR_SPEED - len(seeds))]
    templates: dict[tuple[str, str], Point] = {}
    for point in points.points:
        config = replace(point.config, seed=0)
        if config.begins_elsewhere or config.max_batch.search:
            other = "max_batch.search=true" if config.max_batch.search else f"resume={config.resume}"
            raise UserError(f"report.decide=true with {other}: it adds seeds to trainings from scratch")
        templates.setdefault((workload_hash(config), planned_arm(config)), point)
    every = iter(compose_each([[*_unseeded(of), f"seed={seed}"] for of in templates.values() for seed in seeds]).points)
    arms = [SeededArm(*key, tuple(next(every) for _ in seeds)) for key in templates]
    _require_comparable(arms, "")
    return arms


def _unseeded(point: Point) -> list[str]:
    return [override for override in point.overrides if override.partition("=")[0] != "seed"]


def _require_comparable(arms: Sequence[SeededArm], why: str) -> None:
    """Raise UserError unless every workload has the baseline and another arm."""
    for workload in dict.fromkeys(of.workload for of in arms):
        here = [of for of in arms if of.workload == workload]
        if len(here) < 2 or not any(of.is_baseline for of in here):
            baseline, given = arms[0].first.report.baseline, listed([of.arm for of in here])
            raise UserError(f"report.decide=true compares other arms with {baseline}; there is {given} alone{why}")


def trained_arms(
    arms: Sequence[SeededArm], checked: Sequence[Checked], overrides: Sequence[str], steps: int | None
) -> tuple[list[SeededArm], list[str]]:
    """The arms to train, timed, with steps that fit, and a sentence on each that is left out.

    Args:
        checked: of each arm's first point.
        overrides: those of the command line; if they name the modes, none is left out, and steps that they give stay.
        steps: of earlier runs in the same directory; None: by `report.run_seconds`.

    Raises:
        UserError: no two arms are left.
    """
    keys = [override.lstrip("+").partition("=")[0] for override in overrides]
    arms = [replace(of, check=check) for of, check in zip(arms, checked, strict=True)]
    left_out = {of.arm: why for of in arms if (why := of.check.unsupported or of.check.emulated)}
    if any(key.partition(".")[0] == "precision" for key in keys):
        left_out = {}
    said = [f"without {arm}: {why}" for arm, why in left_out.items()]
    kept = [of for of in arms if of.arm not in left_out]
    _require_comparable(kept, "".join(f"; {sentence}" for sentence in said))
    kept = [replace(of, time=_timed(of)) for of in kept]
    if "trainer.steps" in keys or kept[0].first.report.run_seconds is None:
        return kept, said
    steps = steps or _fitting_steps(kept)
    return kept if steps is None else [of.with_steps(steps) for of in kept], said


def _timed(of: SeededArm) -> ShortRun | None:
    """A short run of the arm, where its time is wanted."""
    if of.check.unsupported is not None or not (of.first.dry_run or of.first.report.run_seconds):
        return None
    with suppress(ChildError):  # a run that fails is an outcome of the sweep
        return short_run(of.first)
    return None


def _fitting_steps(arms: Sequence[SeededArm]) -> int | None:
    """Fewer steps, in tens, with which a run of the slowest arm takes `report.run_seconds`; None to leave them."""
    config = arms[0].first
    steps, wanted_s = config.trainer.steps, config.report.run_seconds
    slowest_s = max((of.time.step_s for of in arms if of.time is not None), default=None)
    if steps is None or wanted_s is None or slowest_s is None:
        return None
    fitting = max(int(wanted_s / slowest_s) // 10 * 10, _MIN_STEPS * config.trainer.warmup_steps)
    return fitting if fitting < steps else None
