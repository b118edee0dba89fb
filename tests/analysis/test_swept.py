from synthetic_records import run

from ampsweep.analysis.comparison import compare


def series_of(entries):
    return compare(entries, baseline="fp32", margin_pct=1.0).series


def sized(hidden, batch_size=8, **model):
    config = {"model": {"hidden_size": hidden, **model}, "data": {"batch_size": batch_size}}
    facts = {"batch_size": batch_size, "model_size": hidden**2}
    more = {"config": config, "facts": facts, "pair_key": str(config)}
    return [run(arm, **more, directory=f"{arm}-{hidden}-{batch_size}") for arm in ("fp32", "amp_bf16")]


def test_workloads_that_differ_in_one_number_are_a_series():
    (only,) = series_of(sized(300) + sized(100) + sized(200))
    assert (only.key, only.values, only.workloads) == ("model.hidden_size", (100, 200, 300), (0, 1, 2))
    assert (only.heading, only.along, only.lines) == ("Against model.hidden_size", (), [])
    (only,) = series_of([run("fp32", facts={"lr": lr}, pair_key=str(lr), directory=str(lr)) for lr in (0.2, 0.1)])
    assert (only.key, only.values) == ("lr", (0.1, 0.2))
    assert series_of([run("fp32", facts={"model": name}, pair_key=name, directory=name) for name in "ab"]) == ()


def test_two_keys_at_once_give_a_series_for_each():
    found = series_of([entry for hidden in (64, 128) for size in (4, 8) for entry in sized(hidden, size)])
    assert [(one.key, one.varied, one.workloads) for one in found] == [
        ("batch_size", {"model.hidden_size": 64}, (0, 2)),
        ("batch_size", {"model.hidden_size": 128}, (1, 3)),
        ("model.hidden_size", {"batch_size": 4}, (0, 1)),
        ("model.hidden_size", {"batch_size": 8}, (2, 3)),
    ]
    assert found[0].heading == "Against batch size (model.hidden_size 64)"


def test_settings_that_change_along_are_named():
    (only,) = series_of([entry for h in (64, 128) for entry in sized(h, inner=2 * h, outer=h, norm="layer" + "s" * h)])
    assert (only.key, only.along) == ("model.hidden_size", ("model.inner", "model.norm"))
    assert only.lines == ["With model.hidden_size model.inner, model.norm change, too"]


def strategies(*of, **settings):
    return [
        run(
            arm,
            seed,
            facts={"parallel": name, "world_size": size, "global_batch_size": 8 * size, "batch_size": 8},
            config={"parallel": {"strategy": name, "num_processes": size, "blocks": [], **settings}},
            pair_key=f"{name} {size} {settings} {seed}",
            directory=f"{arm}-{name}-{size}-{settings}-{seed}",
        )
        for seed in range(3)
        for name, size in of
        for arm in ("fp32", "amp_bf16")
    ]


def test_strategies_and_switches_are_series_in_words():
    (only,) = series_of(strategies(("fsdp2", 2), ("ddp", 2)))
    assert (only.key, only.values, only.in_words) == ("parallel", ("ddp", "fsdp2"), True)
    assert only.heading == "Each strategy beside the others"
    (only,) = series_of(strategies(("fsdp2", 2), ("single", 1), ("ddp", 2)))
    assert (only.values, only.along) == (("single", "ddp", "fsdp2"), ("world_size",))
    sharded = [entry for kept in (True, False) for entry in strategies(("fsdp2", 2), reshard_after_forward=kept)]
    (only,) = series_of(sharded)
    assert (only.key, only.values) == ("parallel.reshard_after_forward", (False, True))
    found = series_of(strategies(*((name, size) for name in ("ddp", "fsdp2") for size in (2, 8))))
    assert [(one.key, one.values, one.varied) for one in found] == [
        ("world_size", (2, 8), {"parallel": "ddp"}),
        ("world_size", (2, 8), {"parallel": "fsdp2"}),
        ("parallel", ("ddp", "fsdp2"), {"world_size": 2}),
        ("parallel", ("ddp", "fsdp2"), {"world_size": 8}),
    ]
