"""`report.decide=true`: which run comes next, and when the sweep ends, in worlds with known truths."""

import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_records import run

from ampsweep.analysis.comparison import compare
from ampsweep.config.compose import compose_one, compose_points
from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash
from ampsweep.run.request import planned_arm
from ampsweep.run.short_run import ShortRun
from ampsweep.sweep import device_checks, seeded_arms, sequential_runs
from ampsweep.sweep.preflight import Checked
from ampsweep.sweep.seeded_arms import trained_arms
from ampsweep.sweep.sequential_runs import SequentialRuns

DECIDE = ("report.decide=true", "model=mlp_small", "device=cpu", "seed=0")


@dataclass
class World:
    """A machine on which a run of each arm takes `seconds` and has its `figures`, lists by seed."""

    seconds: dict[str, float]
    figures: dict[str, dict[str, Any]]
    now_s: float = 0.0
    entries: list[Any] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def train(self, point: Any) -> str:
        arm, seed = planned_arm(point.config), point.config.seed
        own = {key: of[seed] if isinstance(of, list) else of for key, of in self.figures.get(arm, {}).items()}
        directory, record = run(arm, seed, **own)
        record.config_hash = config_hash(point.config)
        self.entries.append((directory, record))
        self.now_s += self.seconds[arm]
        return f"{arm} {seed}"

    def decide(self, *overrides: str) -> list[str]:
        """The runs in their order."""
        arms = seeded_arms.seeded_arms(compose_points([*DECIDE, *overrides], multirun=True))
        report = arms[0].first.report
        order = SequentialRuns(
            arms,
            SimpleNamespace(),
            lambda: compare(
                self.entries, baseline="fp32", margin_pct=1.0, max_pairs=report.max_seeds if report.decide else None
            ),
            0.0,
            self.said.append,
        )
        return [self.train(point) for point in islice(order, 60)]


@pytest.fixture
def world(monkeypatch):
    """Make a world whose clock the sweep sees."""

    def made(seconds: dict[str, float], **figures: dict[str, Any]) -> World:
        new = World(seconds, figures)
        monkeypatch.setattr(sequential_runs, "time", SimpleNamespace(monotonic=lambda: new.now_s))
        ended = lambda _: {record.config_hash for _, record in new.entries}  # noqa: E731
        monkeypatch.setattr(sequential_runs, "finished_hashes", ended)
        return new

    return made


NOISY = [2.00, 2.03, 1.98, 2.02, 1.99, 2.01, 2.0, 2.02, 1.99, 2.01, 2.0, 2.0]
"""Losses whose gap to 2.0 is small beside the margin of 0.02 on average only."""


def test_a_clear_case_ends_after_three_seeds(world):
    clear = world(
        {"fp32": 5, "amp_bf16": 4}, amp_bf16={"step_ms": [70.0, 70.2, 69.9], "val_loss": [2.0, 2.0001, 1.9999]}
    )
    assert clear.decide("precision=fp32,amp_bf16") == [
        f"{arm} {seed}" for seed in range(3) for arm in ("fp32", "amp_bf16")
    ]
    assert clear.said == ["6 runs in 27 s: further ones would decide no more"]


def test_only_an_open_arm_goes_on(world):
    one_open = world({"fp32": 5, "amp_bf16": 4, "amp_fp16": 4}, amp_fp16={"val_loss": NOISY})
    runs = one_open.decide("precision=fp32,amp_bf16,amp_fp16")
    assert runs.count("amp_bf16 2") == 1
    assert not any(run.startswith("amp_bf16") for run in runs[9:])
    assert {"amp_fp16 3", "fp32 3"} <= set(runs[9:])


def test_the_cheaper_of_two_open_arms_goes_first(world):
    noisy = {"val_loss": NOISY}
    both_open = world({"fp32": 5, "amp_bf16": 4, "amp_fp16": 40}, amp_bf16=noisy, amp_fp16=noisy)
    runs = both_open.decide("precision=fp32,amp_fp16,amp_bf16")
    assert runs[9:11] == ["fp32 3", "amp_bf16 3"]


def test_no_run_begins_that_would_exceed_the_budget(world):
    slow = world({"fp32": 20, "amp_bf16": 20}, amp_bf16={"val_loss": NOISY})
    assert len(slow.decide("precision=fp32,amp_bf16", "report.budget_minutes=3")) == 8
    assert slow.said == ["report.budget_minutes=3 is reached after 8 runs in 2:40 min; not decided: amp_bf16"]


def test_the_plan_ends_with_its_last_seed(world):
    never = world({"fp32": 1, "amp_bf16": 1}, amp_bf16={"val_loss": [2.0, 2.2] * 6})
    assert len(never.decide("precision=fp32,amp_bf16", "report.max_seeds=5")) == 10
    assert never.said == ["10 runs in 10 s: further ones would decide no more"]


def test_a_dominated_arm_ends_early(world):
    # slower than the baseline, as large, and its parity is open
    worse = world({"fp32": 5, "amp_bf16": 9}, amp_bf16={"step_ms": [150.0, 151.0, 149.0], "val_loss": NOISY})
    assert len(worse.decide("precision=fp32,amp_bf16")) == 6


def test_a_busy_machine_is_timed_again_by_the_next_command_only(world):
    busy = {"contamination": {"verdict": "contaminated", "reasons": ["other processes"]}}
    machine = world({"fp32": 5, "amp_bf16": 4}, fp32=busy, amp_bf16=busy)
    spent = ("precision=fp32,amp_bf16", "report.max_seeds=3")
    assert len(machine.decide(*spent)) == 6
    machine.figures = {"amp_bf16": {"step_ms": [70.0, 70.2, 69.9] * 3}}
    assert len(machine.decide(*spent)) == 6, "three clean pairs, beyond those planned for parity"
    assert machine.decide(*spent) == []


@pytest.mark.parametrize("status", ["unsupported", "failed", "diverged"])
def test_an_arm_that_does_not_train_costs_at_most_three_runs(world, status):
    failing = world({"fp32": 5, "amp_bf16": 4, "amp_fp16": 1}, amp_fp16={"status": status, "val_loss": None})
    runs = failing.decide("precision=fp32,amp_bf16,amp_fp16")
    assert 1 <= sum(run.startswith("amp_fp16") for run in runs) <= 3
    assert len(runs) <= 9


def test_a_baseline_that_fails_ends_the_sweep(world):
    failing = world({"fp32": 5, "amp_bf16": 4}, fp32={"status": "failed", "val_loss": None})
    assert len(failing.decide("precision=fp32,amp_bf16")) <= 6


def test_finished_runs_count_and_further_seeds_follow_the_largest_given(world):
    goes_on = world({"fp32": 5, "amp_bf16": 4}, amp_bf16={"val_loss": NOISY})
    first = goes_on.decide("precision=fp32,amp_bf16", "report.budget_minutes=0.5")
    second = goes_on.decide("precision=fp32,amp_bf16", "report.budget_minutes=600")
    assert first[-1] == "amp_bf16 2"
    assert second[:2] == ["fp32 3", "amp_bf16 3"]


@pytest.fixture
def timed(monkeypatch):
    """Set the seconds of a step by arm."""
    step_s: dict[str, float] = {}
    monkeypatch.setattr(seeded_arms, "short_run", lambda config: ShortRun(step_s[planned_arm(config)], 0.5, 1.0))
    return step_s


def trained(*overrides: str, given: tuple[str, ...] = (), steps: int | None = None):
    arms = seeded_arms.seeded_arms(compose_points([*DECIDE, *overrides], multirun=True))
    found = {"tf32": Checked(unsupported="no tensor cores"), "amp_fp16": Checked(emulated="this CPU emulates float16")}
    return trained_arms(arms, [found.get(of.arm, Checked()) for of in arms], given, steps)


def test_modes_that_the_device_lacks_or_emulates_are_left_out_unless_named():
    modes = "precision=fp32,tf32,amp_bf16,amp_fp16"
    arms, said = trained(modes)
    assert [of.arm for of in arms] == ["fp32", "amp_bf16"]
    assert said == ["without tf32: no tensor cores", "without amp_fp16: this CPU emulates float16"]
    assert [of.arm for of in trained(modes, given=(modes,))[0]] == ["fp32", "tf32", "amp_bf16", "amp_fp16"]
    with pytest.raises(UserError, match="there is fp32 alone; without tf32: no tensor cores"):
        trained("precision=fp32,tf32")


def test_steps_fit_the_slowest_arm_and_earlier_runs(timed):
    timed |= {"fp32": 0.1, "amp_bf16": 0.25}
    fitting = ("precision=fp32,amp_bf16", "trainer.steps=200", "report.run_seconds=20")
    for steps, expected in ((None, 80), (120, 120)):
        arms, _ = trained(*fitting, steps=steps)
        assert {point.config.trainer.steps for of in arms for point in of.points} == {expected}
    assert trained(*fitting, "trainer.steps=50")[0][0].first.trainer.steps == 50
    assert trained(*fitting, "report.run_seconds=1")[0][0].first.trainer.steps == 30, "three times the warm-up"
    given = trained(*fitting, given=("trainer.steps=200",), steps=120)
    assert given[0][0].first.trainer.steps == 200, "longer trainings beside earlier ones"


def test_a_dtype_is_emulated_if_its_products_take_ten_times_as_long(monkeypatch):
    config, device = compose_one(["precision=amp_fp16", "device=cpu"]), torch.device("cpu")
    times = {"float32": 1.0, "float16": 9.9}
    monkeypatch.setattr(device_checks, "_product_seconds", times.__getitem__)
    assert device_checks.emulated(config, device) is None
    times["float16"] = 30.0
    expected = "this CPU emulates float16: a product of matrices takes 30 times as long as in float32"
    assert device_checks.emulated(config, device) == expected
    assert device_checks.emulated(config, torch.device("cuda")) is None
    assert device_checks.emulated(compose_one(["precision=fp32"]), device) is None


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("precision=amp_bf16",), "compares other arms with fp32; there is amp_bf16 alone"),
        (("precision=fp32,amp_bf16", "seed=0,1,2,3", "report.max_seeds=3"), "max_seeds=3: 4 seeds are given"),
        (("precision=fp32,amp_bf16", "max_batch.search=true"), "with max_batch.search=true"),
        (("precision=fp32,amp_bf16", "resume=x.pt"), "with resume=x.pt"),
    ],
)
def test_what_cannot_be_decided_is_refused(overrides, sentence):
    with pytest.raises(UserError, match=sentence):
        seeded_arms.seeded_arms(compose_points([*DECIDE, *overrides], multirun=True))
