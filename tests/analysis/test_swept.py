"""Series of workloads that differ in one swept key."""

from synthetic_records import Entry, run

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.swept import Series


def sized(arm: str, hidden: int, batch_size: int = 8, **model) -> Entry:
    config = {"model": {"hidden_size": hidden, **model}, "data": {"batch_size": batch_size}}
    return run(
        arm,
        config=config,
        facts={"batch_size": batch_size, "model_size": hidden**2},
        pair_key=str(config),
        directory=f"{arm}-{hidden}-{batch_size}",
    )


def both(hidden: int, **more) -> list[Entry]:
    return [sized(arm, hidden, **more) for arm in ("fp32", "amp_bf16")]


def series_of(*entries: Entry) -> tuple[Series, ...]:
    return compare(entries, baseline="fp32", margin_pct=1.0).series


def test_workloads_that_differ_in_one_number_are_a_series():
    (only,) = series_of(*both(300), *both(100), *both(200))
    assert (only.key, only.values, only.workloads) == ("model.hidden_size", (100, 200, 300), (0, 1, 2))
    assert (only.heading, only.along, only.lines) == ("Against model.hidden_size", (), [])


def test_two_keys_at_once_give_a_series_for_each():
    found = series_of(*(one for hidden in (64, 128) for size in (4, 8) for one in both(hidden, batch_size=size)))
    assert [(one.key, one.varied, one.workloads) for one in found] == [
        ("batch_size", {"model.hidden_size": 64}, (0, 2)),
        ("batch_size", {"model.hidden_size": 128}, (1, 3)),
        ("model.hidden_size", {"batch_size": 4}, (0, 1)),
        ("model.hidden_size", {"batch_size": 8}, (2, 3)),
    ]
    assert found[0].heading == "Against batch size (model.hidden_size 64)"


def test_what_changes_along_is_named():
    """Twice its value is another number; its own value is the same size."""
    (only,) = series_of(*(one for h in (64, 128) for one in both(h, inner=2 * h, outer=h, norm="layer" + "s" * h)))
    assert (only.key, only.along) == ("model.hidden_size", ("model.inner", "model.norm"))
    assert only.lines == ["With model.hidden_size model.inner, model.norm change, too"]


def test_any_swept_number_is_a_series_and_models_are_none():
    entries = [run("fp32", facts={"lr": lr}, pair_key=str(lr), directory=str(lr)) for lr in (0.2, 0.1)]
    (only,) = series_of(*entries)
    assert (only.key, only.values) == ("lr", (0.1, 0.2))
    models = [run("fp32", facts={"model": name}, pair_key=name, directory=name) for name in "ab"]
    assert series_of(*models) == ()


def parallel(arm: str, seed: int, strategy: str, world_size: int, **more) -> Entry:
    facts = {"parallel": strategy, "world_size": world_size, "global_batch_size": 8 * world_size, "batch_size": 8}
    settings = {"strategy": strategy, "num_processes": world_size, "blocks": [], **more.pop("settings", {})}
    return run(
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
    assert (only.key, only.values, only.in_words) == ("parallel", ("ddp", "fsdp2"), True)
    assert only.heading == "Each strategy beside the others"


def test_one_process_stands_beside_strategies():
    (only,) = series_of(*strategies(("fsdp2", 2), ("single", 1), ("ddp", 2)))
    assert (only.values, only.along) == (("single", "ddp", "fsdp2"), ("world_size",))


def test_strategies_on_each_number_of_ranks_are_a_series():
    found = series_of(*strategies(*((name, size) for name in ("ddp", "fsdp2") for size in (2, 8))))
    assert [(one.key, one.values, one.varied) for one in found] == [
        ("world_size", (2, 8), {"parallel": "ddp"}),
        ("world_size", (2, 8), {"parallel": "fsdp2"}),
        ("parallel", ("ddp", "fsdp2"), {"world_size": 2}),
        ("parallel", ("ddp", "fsdp2"), {"world_size": 8}),
    ]


def test_a_switch_is_a_series_too():
    sharded = [
        one for kept in (True, False) for one in strategies(("fsdp2", 2), settings={"reshard_after_forward": kept})
    ]
    for _, record in sharded:
        record.pair_key += str(record.config["parallel"])
    (only,) = series_of(*((place.with_name(f"{n}"), record) for n, (place, record) in enumerate(sharded)))
    assert (only.key, only.values) == ("parallel.reshard_after_forward", (False, True))
