import pytest
from synthetic_records import Entry, contaminated, failed, run

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.size_series import SizeSeries, is_multiple


def sized(arm: str, seed: int, step_ms: float, hidden: int, batch_size: int = 8, make=run, **more) -> Entry:
    config = {"model": {"hidden_size": hidden, **more.pop("model", {})}, "data": {"batch_size": batch_size}}
    name = f"{arm}-{hidden}-{batch_size}-{seed}"
    return make(
        arm,
        seed,
        step_ms=step_ms,
        config=config,
        facts={"batch_size": batch_size, "model_size": hidden**2},
        pair_key=f"{config} {seed}",
        directory=name,
        **more,
    )


def both(hidden: int, speedups: list[float], **more) -> list[Entry]:
    """A pair a seed at one size."""
    arms = [
        (arm, seed, 100.0 / (speedup if arm != "fp32" else 1.0))
        for seed, speedup in enumerate(speedups)
        for arm in ("fp32", "amp_bf16")
    ]
    return [sized(arm, seed, time, hidden, **more) for arm, seed, time in arms]


def series_of(*entries: Entry) -> tuple[SizeSeries, ...]:
    return compare(entries, baseline="fp32", margin_pct=1.0).series


def test_workloads_that_differ_in_one_size_are_a_series():
    (only,) = series_of(*both(300, [2.0]), *both(100, [1.0]), *both(200, [1.5]))
    assert (only.key, only.config_key, only.sizes) == ("model.hidden_size", "model.hidden_size", (100, 200, 300))
    assert only.workloads == (0, 1, 2)
    assert only.along == ()


def test_the_batch_size_is_known_by_its_own_key():
    (only,) = series_of(*both(64, [1.0], batch_size=16), *both(64, [1.0], batch_size=4))
    assert (only.key, only.config_key, only.sizes) == ("batch_size", "data.batch_size", (4, 16))


def test_two_sizes_at_once_give_a_series_for_each_of_the_other():
    found = series_of(*(one for hidden in (64, 128) for size in (4, 8) for one in both(hidden, [1.0], batch_size=size)))
    assert [(one.key, one.varied, one.workloads) for one in found] == [
        ("batch_size", {"model.hidden_size": 64}, (0, 2)),
        ("batch_size", {"model.hidden_size": 128}, (1, 3)),
        ("model.hidden_size", {"batch_size": 4}, (0, 1)),
        ("model.hidden_size", {"batch_size": 8}, (2, 3)),
    ]


def test_what_changes_along_with_a_size_is_named():
    """Twice its value is another number; its own value is the same size."""
    (only,) = series_of(*(one for h in (64, 128) for one in both(h, [1.0], model={"inner": 2 * h, "outer": h})))
    assert (only.key, only.along) == ("model.hidden_size", ("model.inner",))


def test_a_word_that_changes_along_with_a_size_ends_the_series():
    assert series_of(*both(64, [1.0], model={"norm": "layer"}), *both(128, [1.0], model={"norm": "batch"})) == ()


def test_models_are_no_sizes():
    entries = [
        run(
            arm,
            facts={"model": model, "model_size": size},
            pair_key=model,
            directory=f"{arm}{model}",
            config={"model": {"name": model, "hidden_size": size}},
        )
        for model, size in (("a", 64), ("b", 128))
        for arm in ("fp32", "amp_bf16")
    ]
    assert series_of(*entries) == ()


def test_a_learning_rate_is_no_size():
    entries = [run("fp32", facts={"lr": lr}, pair_key=str(lr), directory=str(lr)) for lr in (0.1, 0.2)]
    assert series_of(*entries) == ()


def effects_of(*entries: Entry):
    return series_of(*entries)[0].effects


def test_a_size_beside_a_multiple_of_8_is_held_against_it():
    entries = [*both(1023, [1.0, 1.1, 1.05]), *both(1024, [2.0, 2.1, 2.05]), *both(512, [1.5] * 3)]
    (only,) = effects_of(*entries)
    assert (only.arm, only.size, only.multiple, only.undecided) == ("amp_bf16", 1023, 1024, None)
    assert only.ratio.value == pytest.approx((1.0 * 1.1 * 1.05 / (2.0 * 2.1 * 2.05)) ** (1 / 3))
    assert only.ratio.n == 3
    assert only.ratio.high < 0.6


def test_seeds_are_paired_between_sizes():
    """Each seed's own drift falls out: the speedups differ by more than the ratio does."""
    (only,) = effects_of(*both(1023, [1.0, 2.0, 4.0]), *both(1024, [1.26, 2.48, 5.0]))
    assert only.undecided is None
    assert only.ratio.value == pytest.approx(0.8, rel=0.02)


@pytest.mark.parametrize(
    ("off", "on", "why"),
    [
        ([1.0, 1.1], [2.0, 2.1], "too few seeds"),
        ([1.0, 1.2, 0.9], [1.1, 1.0, 1.0], "not resolved"),
    ],
)
def test_without_evidence_nothing_is_decided(off, on, why):
    (only,) = effects_of(*both(1023, off), *both(1024, on))
    assert only.undecided == why


def test_a_step_too_small_to_judge_decides_nothing():
    entries = both(255, [1.0, 1.1, 1.05], num_operators=100_000) + both(256, [2.0, 2.1, 2.05])
    (found,) = series_of(*entries)
    assert found.effects[0].undecided == "too small"
    assert found.too_small == (255,)


def test_contaminated_runs_have_no_part_in_it():
    entries = [*both(1023, [1.0, 1.1]), *both(1023, [1.0], make=contaminated)][2:]
    (only,) = effects_of(*entries, *both(1024, [2.0, 2.1]))
    assert (only.ratio.n, only.undecided) == (1, "too few seeds")
    (none,) = effects_of(*both(1023, [1.0], make=contaminated), *both(1024, [2.0]))
    assert (none.ratio, none.undecided) == (None, "no figures")


def test_an_arm_that_never_ran_has_no_part_in_it():
    lost = [sized("tf32", 0, 1.0, hidden, make=failed, status="unsupported") for hidden in (1023, 1024)]
    found = effects_of(*both(1023, [1.0]), *both(1024, [2.0]), *lost)
    assert [one.arm for one in found] == ["amp_bf16"]


def test_a_multiple_far_away_is_no_neighbour():
    """Between 7 and 8 the arithmetic differs by a quarter: that is no question of multiples."""
    assert effects_of(*both(7, [1.0] * 3), *both(8, [2.0] * 3)) == ()


def test_multiples_of_8():
    assert [size for size in (0.5, 4, 8, 12, 1023, 1024) if is_multiple(size)] == [8, 1024]


def parallel(arm: str, seed: int, strategy: str, world_size: int, *, batch_size: int = 8, make=run, **more) -> Entry:
    facts = {"parallel": strategy, "world_size": world_size, "global_batch_size": batch_size * world_size}
    facts["batch_size"] = batch_size
    settings = {"strategy": strategy, "num_processes": world_size, "blocks": [], **more.pop("settings", {})}
    return make(
        arm,
        seed,
        facts=facts,
        config={"parallel": settings},
        pair_key=f"{facts} {seed}",
        directory=f"{arm}-{strategy}-{world_size}-{seed}",
        **more,
    )


def strategies(*of: tuple[str, int], **more) -> list[Entry]:
    return [parallel(arm, seed, *one, **more) for seed in range(3) for one in of for arm in ("fp32", "amp_bf16")]


def test_strategies_are_a_series_in_their_usual_order():
    (only,) = series_of(*strategies(("fsdp2", 2), ("ddp", 2)))
    assert (only.key, only.config_key, only.sizes) == ("parallel", "parallel.strategy", ("ddp", "fsdp2"))
    assert only.in_words
    assert only.effects == ()
    assert [(one.arm, one.size, one.first) for one in only.steps] == [
        ("fp32", "fsdp2", "ddp"),
        ("amp_bf16", "fsdp2", "ddp"),
    ]


def test_one_process_stands_beside_strategies():
    (only,) = series_of(*strategies(("fsdp2", 2), ("single", 1), ("ddp", 2)))
    assert (only.sizes, only.along) == (("single", "ddp", "fsdp2"), ("world_size",))
    assert {one.first for one in only.steps} == {"single"}


def test_strategies_on_each_number_of_ranks_are_a_series():
    found = series_of(*strategies(*((name, size) for name in ("ddp", "fsdp2") for size in (2, 8))))
    assert [(one.key, one.sizes, one.varied) for one in found] == [
        ("world_size", (2, 8), {"parallel": "ddp"}),
        ("world_size", (2, 8), {"parallel": "fsdp2"}),
        ("parallel", ("ddp", "fsdp2"), {"world_size": 2}),
        ("parallel", ("ddp", "fsdp2"), {"world_size": 8}),
    ]


def test_a_number_of_ranks_is_no_size_of_tensors():
    (only,) = series_of(*strategies(("ddp", 8), ("ddp", 9)))
    assert (only.key, only.of_tensors, only.effects) == ("world_size", False, ())


def test_a_switch_of_a_strategy_is_a_series_too():
    sharded = [
        one for kept in (True, False) for one in strategies(("fsdp2", 2), settings={"reshard_after_forward": kept})
    ]
    for _, record in sharded:
        record.pair_key += str(record.config["parallel"])
    (only,) = series_of(*((place.with_name(f"{n}"), record) for n, (place, record) in enumerate(sharded)))
    assert (only.key, only.sizes) == ("parallel.reshard_after_forward", ("false", "true"))


def test_an_arm_stands_beside_itself_under_the_first_strategy():
    fast = [parallel("fp32", seed, "ddp", 2, step_ms=100.0, peak_mib=1000.0, val_loss=2.0) for seed in range(3)]
    lean = [parallel("fp32", seed, "fsdp2", 2, step_ms=125.0, peak_mib=600.0, val_loss=2.0) for seed in range(3)]
    ((step,),) = (one.steps for one in series_of(*fast, *lean))
    assert (step.throughput.value, step.throughput.n) == (pytest.approx(0.8), 3)
    assert step.memory_saved_pct.value == pytest.approx(40.0)
    assert (step.loss_gap.value, step.loss_gap.exact) == (0.0, True)


def test_other_numbers_of_samples_have_no_loss_gap():
    entries = [parallel("fp32", 0, "single", 1), parallel("fp32", 0, "ddp", 4)]
    ((step,),) = (one.steps for one in series_of(*entries))
    assert step.throughput.value == pytest.approx(4.0)
    assert (step.loss_gap, step.same_samples) == (None, False)


def test_the_arm_that_casts_as_it_does_counts():
    autocast = parallel("amp_bf16+mixed_precision=autocast", 0, "fsdp2", 2)
    entries = [parallel("amp_bf16", 0, "ddp", 2), parallel("amp_bf16", 0, "fsdp2", 2), autocast]
    ((policy, own),) = (one.steps for one in series_of(*entries))
    assert (policy.arm, policy.first_arm) == ("amp_bf16", "amp_bf16")
    assert (own.arm, own.first_arm) == ("amp_bf16+mixed_precision=autocast", "amp_bf16")


def test_contaminated_runs_give_a_step_no_throughput():
    entries = [parallel("fp32", 0, "ddp", 2), parallel("fp32", 0, "fsdp2", 2, make=contaminated)]
    ((step,),) = (one.steps for one in series_of(*entries))
    assert step.throughput is None
    assert step.memory_saved_bytes is not None
