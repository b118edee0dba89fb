from synthetic_records import failed, run, searched

from ampsweep.analysis.runs import Run
from ampsweep.analysis.workloads import group_workloads


def group(*entries):
    return group_workloads([Run(directory, record) for directory, record in entries])


def sizes(workloads):
    return [len(workload.runs) for workload in workloads]


def test_arms_and_seeds_share_a_workload():
    assert sizes(group(*(run(arm, seed) for seed in (0, 1) for arm in ("fp32", "amp_bf16")))) == [4]


def test_workloads_are_named_and_ordered_by_what_varies():
    workloads = group(
        *(run("fp32", facts={"model": model, "batch_size": size}) for model in ("mlp", "gpt") for size in (16, 8, 128))
    )
    assert [workload.title for workload in workloads] == [
        "model gpt, batch_size 8",
        "model gpt, batch_size 16",
        "model gpt, batch_size 128",
        "model mlp, batch_size 8",
        "model mlp, batch_size 16",
        "model mlp, batch_size 128",
    ]


def test_a_single_workload_is_named_by_what_it_is():
    (only,) = group(run("fp32"))
    assert only.title == "model gpt_tiny, data text, batch_size 8, seq_len 64, device_name a CPU"


def test_a_run_refused_early_stays_with_its_workload():
    refused = failed("tf32", 0, "unsupported", facts={"model_size": None, "device_name": None}, pair_key="other")
    (only,) = group(refused, run("fp32"), run("amp_bf16"))
    assert len(only.runs) == 3
    assert only.facts["model_size"] == 1_000_000


def test_a_run_killed_while_starting_stays_with_its_workload():
    """Its device is that of its config, as only the run would have found out which one that is."""
    begun = {"device": "auto", "device_name": None, "model_size": None, "steps": None}
    killed = failed("amp_bf16", 1, "failed", "killed by SIGKILL", facts=begun, pair_key="other")
    (only,) = group(run("fp32"), run("fp32", 1), run("amp_bf16"), killed)
    assert only.facts["device"] == "cpu"


def test_every_workload_has_a_title():
    begun = {"device_name": None, "model_size": None}
    killed = failed("amp_bf16", 1, "failed", "killed by SIGKILL", facts=begun, pair_key="other")
    titles = [one.title for one in group(run("fp32"), run("fp32", facts={"device_name": "B"}, directory="b"), killed)]
    assert titles[-1] == "model gpt_tiny, data text, batch_size 8, seq_len 64"
    assert [title.partition("device_name ")[2] for title in titles[:2]] == ["B", "a CPU"]


def test_a_run_of_unknown_device_is_not_assigned_to_one_of_two():
    unknown = failed("tf32", 0, "unsupported", facts={"device_name": None}, pair_key="other")
    workloads = group(run("fp32"), run("fp32", facts={"device_name": "another"}, directory="b"), unknown)
    assert sizes(workloads) == [1, 1, 1]


def test_devices_of_one_model_share_a_workload():
    entries = [run("fp32", seed, facts={"device": f"cuda:{seed}"}) for seed in range(3)]
    (workload,) = group(*entries, run("amp_bf16", facts={"device": "cuda:3"}, config={"device": "cuda:0/3"}))
    assert workload.facts["device"] == "cuda"
    sets = [run("fp32", facts={"device": f"cpu:0-{n - 1}", "device_name": f"a CPU, {n} cores"}) for n in (4, 8)]
    assert sizes(group(*sets)) == [1, 1], "sets of cores of two sizes are two devices"


def test_a_setting_outside_the_identity_splits_the_workload():
    decays = [{"optimizer": {"weight_decay": decay}} for decay in (0.0, 0.1)]
    entries = [
        run(arm, seed, config=config, directory=f"{arm}{seed}{config['optimizer']['weight_decay']}")
        for config in decays
        for arm in ("fp32", "amp_bf16")
        for seed in (0, 1)
    ]
    workloads = group(*entries)
    assert [workload.title for workload in workloads] == ["optimizer.weight_decay 0.0", "optimizer.weight_decay 0.1"]
    assert sizes(workloads) == [4, 4]


def test_a_setting_that_is_null_names_its_workload():
    norms = (None, 1.0)
    entries = [
        run("fp32", config={"trainer": {"max_grad_norm": one}}, pair_key=f"{one}", directory=f"{one}") for one in norms
    ]
    assert {one.title for one in group(*entries)} == {"trainer.max_grad_norm null", "trainer.max_grad_norm 1.0"}


def sized(arm, hidden, seed=0, **more):
    """A run whose layers all have one size, as `${model.hidden_size}` makes them."""
    config = {"model": {"hidden_size": hidden}, "data": {"in_features": hidden, "out_features": hidden}}
    facts = {"model_size": 3 * hidden**2, **more.pop("facts", {})}
    name = f"{arm}-{hidden}-{seed}-{more.get('status')}"
    return run(arm, seed, config=config, facts=facts, pair_key=f"{hidden} {seed}", directory=name, **more)


def test_a_swept_size_names_its_workload():
    """The number of parameters follows from it, and so do the keys that take its value."""
    workloads = group(*(sized(arm, hidden) for hidden in (256, 64) for arm in ("fp32", "amp_bf16")))
    assert [one.title for one in workloads] == ["model.hidden_size 64", "model.hidden_size 256"]
    assert workloads[0].facts["model_size"] == 3 * 64**2


def test_a_run_refused_early_stays_with_its_size():
    refused = [
        sized("tf32", hidden, facts={"model_size": None}, status="unsupported", step_ms=None) for hidden in (64, 256)
    ]
    workloads = group(*refused, *(sized("fp32", hidden) for hidden in (64, 256)))
    assert [{run.arm for run in one.runs} for one in workloads] == [{"fp32", "tf32"}] * 2
    assert [one.facts["model_size"] for one in workloads] == [3 * 64**2, 3 * 256**2]


def test_models_of_one_config_and_two_sizes_are_two_workloads():
    entries = [run("fp32", facts={"model_size": size}, pair_key=str(size), directory=str(size)) for size in (10, 20)]
    assert [one.title for one in group(*entries)] == ["model_size 10", "model_size 20"]


def test_logging_and_tracking_settings_do_not_split_a_workload():
    quiet = {"trainer": {"log_every": 1}, "tracking": {"mode": "offline"}}
    assert sizes(group(run("fp32"), run("fp32", config=quiet, pair_key="other code", directory="b"))) == [2]


def test_a_setting_that_follows_the_seed_splits_no_workload():
    entries = [run(arm, s, config={"data": {"order": s}}) for s in (0, 1) for arm in ("fp32", "amp_bf16")]
    assert sizes(group(*entries)) == [4]


def test_a_workload_of_several_ranks_is_named_by_them():
    (only,) = group(run("fp32", facts={"parallel": "ddp", "world_size": 4, "global_batch_size": 32}))
    assert only.title.endswith("device_name a CPU, parallel ddp, world_size 4, global_batch_size 32")


def test_strategies_are_workloads_and_their_samples_follow():
    found = group(
        run("fp32", facts={"parallel": "single", "world_size": 1, "global_batch_size": 8}, pair_key="a"),
        run("fp32", facts={"parallel": "fsdp2", "world_size": 4, "global_batch_size": 32}, pair_key="b"),
    )
    assert [one.title for one in found] == ["world_size 1, parallel single", "world_size 4, parallel fsdp2"]


def test_a_record_from_before_there_were_ranks_joins_its_like():
    (only,) = group(run("fp32", facts={"global_batch_size": 8}), run("amp_bf16", facts={"global_batch_size": None}))
    assert len(only.runs) == 2


def test_what_makes_an_arm_of_a_strategy_makes_no_workload():
    facts = {"parallel": "fsdp2", "world_size": 2}
    arms = {"amp_bf16": "policy", "amp_bf16+mixed_precision=autocast": "autocast"}
    (only,) = group(
        *(
            run(arm, config={"parallel": {"strategy": "fsdp2", "mixed_precision": kind}}, facts=facts, pair_key=arm)
            for arm, kind in arms.items()
        )
    )
    assert len(only.runs) == 2


def test_a_search_is_one_workload_whatever_batch_each_arm_found():
    found = group(
        searched("fp32", 4, None, facts={"global_batch_size": 4}),
        searched("amp_bf16", 6, None, facts={"global_batch_size": 6}),
    )
    assert sizes(found) == [2]
