from synthetic_records import failed, run, searched

from ampsweep.analysis.runs import Run
from ampsweep.analysis.workloads import group_workloads

ARMS = ("fp32", "amp_bf16")


def group(*entries):
    return group_workloads([Run(directory, record) for directory, record in entries])


def sizes(*entries):
    return [len(workload.runs) for workload in group(*entries)]


def titles(*entries):
    return [workload.title for workload in group(*entries)]


def test_workloads_are_named_and_ordered_by_what_varies():
    assert sizes(*(run(arm, seed) for seed in (0, 1) for arm in ARMS)) == [4]
    assert titles(run("fp32")) == ["model gpt_tiny, data text, batch_size 8, seq_len 64, device_name a CPU"]
    of = [(model, size) for model in ("mlp", "gpt") for size in (16, 8, 128)]
    assert titles(*(run("fp32", facts={"model": model, "batch_size": size}) for model, size in of)) == [
        f"model {model}, batch_size {size}" for model in ("gpt", "mlp") for size in (8, 16, 128)
    ]
    grown = [run("fp32", facts={"model_size": size}, pair_key=str(size), directory=str(size)) for size in (10, 20)]
    assert titles(*grown) == ["model_size 10", "model_size 20"]


BEGUN = {"device": "auto", "device_name": None, "model_size": None, "steps": None}


def test_a_run_that_lacks_facts_joins_the_workload_it_fits():
    for lost in (
        failed("tf32", 0, "unsupported", facts={"model_size": None, "device_name": None}, pair_key="other"),
        failed("amp_bf16", 1, "failed", "killed by SIGKILL", facts=BEGUN, pair_key="other"),
        run("amp_bf16", facts={"global_batch_size": None}, pair_key="other", directory="before there were ranks"),
    ):
        (only,) = group(lost, run("fp32"), run("fp32", 1), run("amp_bf16"))
        assert len(only.runs) == 4
        assert (only.facts["model_size"], only.facts["device"]) == (1_000_000, "cpu")


def test_a_run_that_agrees_with_two_workloads_stays_alone():
    unknown = failed("tf32", 0, "unsupported", facts={"device_name": None, "model_size": None}, pair_key="other")
    found = titles(run("fp32"), run("fp32", facts={"device_name": "B"}, directory="b"), unknown)
    assert [title.partition("device_name ")[2] for title in found[:2]] == ["B", "a CPU"]
    assert found[2] == "model gpt_tiny, data text, batch_size 8, seq_len 64", "every workload has a title"


def test_devices_of_one_kind_share_a_workload():
    entries = [run("fp32", seed, facts={"device": f"cuda:{seed}"}) for seed in range(3)]
    (workload,) = group(*entries, run("amp_bf16", facts={"device": "cuda:3"}, config={"device": "cuda:0/3"}))
    assert workload.facts["device"] == "cuda"
    sets = [run("fp32", facts={"device": f"cpu:0-{n - 1}", "device_name": f"a CPU, {n} cores"}) for n in (4, 8)]
    assert sizes(*sets) == [1, 1], "sets of cores of two sizes are two devices"


def with_setting(section, key, values):
    every = ((value, arm, {"config": {section: {key: value}}}) for value in values for arm in ARMS)
    return [run(arm, pair_key=f"{value}", directory=f"{arm}{value}", **of) for value, arm, of in every]


def test_settings_of_the_computation_split_workloads():
    entries = with_setting("optimizer", "weight_decay", (0.0, 0.1))
    assert titles(*entries) == ["optimizer.weight_decay 0.0", "optimizer.weight_decay 0.1"]
    assert sizes(*entries) == [2, 2]
    found = titles(*with_setting("trainer", "max_grad_norm", (None, 1.0)))
    assert set(found) == {"trainer.max_grad_norm null", "trainer.max_grad_norm 1.0"}
    quiet = {"trainer": {"log_every": 1}, "tracking": {"mode": "offline"}}
    assert sizes(run("fp32"), run("fp32", config=quiet, pair_key="other code", directory="b")) == [2]
    assert sizes(*(run(arm, seed, config={"data": {"order": seed}}) for seed in (0, 1) for arm in ARMS)) == [4]


def test_a_swept_size_names_its_workload():
    def sized(arm, hidden, status="completed", model_size=True, **more):
        config = {"model": {"hidden_size": hidden}, "data": {"in_features": hidden, "out_features": hidden}}
        facts = {"model_size": 3 * hidden**2 if model_size else None}
        place = {"pair_key": f"{hidden}", "directory": f"{arm}-{hidden}-{status}"}
        return run(arm, config=config, facts=facts, status=status, **place, **more)

    refused = [sized("tf32", hidden, "unsupported", model_size=False, step_ms=None) for hidden in (64, 256)]
    found = group(*refused, *(sized(arm, hidden) for hidden in (256, 64) for arm in ARMS))
    assert [one.title for one in found] == ["model.hidden_size 64", "model.hidden_size 256"]
    assert [{run.arm for run in one.runs} for one in found] == [{*ARMS, "tf32"}] * 2
    assert [one.facts["model_size"] for one in found] == [3 * 64**2, 3 * 256**2]


def test_workloads_of_several_ranks_are_named_by_them():
    def ranks(strategy, world_size):
        facts = {"parallel": strategy, "world_size": world_size, "global_batch_size": 8 * world_size}
        return run("fp32", facts=facts, pair_key=strategy, directory=strategy)

    (title,) = titles(ranks("ddp", 4))
    assert title.endswith("device_name a CPU, parallel ddp, world_size 4, global_batch_size 32")
    both = titles(ranks("single", 1), ranks("fsdp2", 4))
    assert both == ["world_size 1, parallel single", "world_size 4, parallel fsdp2"]


def test_settings_of_an_arm_and_searched_batches_split_none():
    def sharded(arm, kind):
        config = {"parallel": {"strategy": "fsdp2", "mixed_precision": kind}}
        return run(arm, config=config, facts={"parallel": "fsdp2", "world_size": 2}, pair_key=arm)

    assert sizes(sharded("amp_bf16", "policy"), sharded("amp_bf16+mixed_precision=autocast", "autocast")) == [2]
    found = [searched(arm, n, None, facts={"global_batch_size": n}) for arm, n in (("fp32", 4), ("amp_bf16", 6))]
    assert sizes(*found) == [2]
