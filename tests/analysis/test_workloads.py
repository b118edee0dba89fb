"""Runs in workloads, and workloads in series (`golden/workloads.md`)."""

from synthetic_records import document, failed, run, searched

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.runs import Run
from ampsweep.analysis.workloads import group_workloads

ARMS = ("fp32", "amp_bf16")
BEGUN = {"device": "auto", "device_name": None, "model_size": None, "steps": None}
OTHER_KEY = {"pair_key": "other"}


def beside_three(lost):
    return [lost, run("fp32"), run("fp32", 1), run("amp_bf16")]


def with_setting(section, key, values):
    every = ((value, arm, {"config": {section: {key: value}}}) for value in values for arm in ARMS)
    return [run(arm, pair_key=f"{value}", directory=f"{arm}{value}", **of) for value, arm, of in every]


def sized(hidden, batch_size=8, arms=ARMS, model_size=True, status="completed", **model):
    """Runs of a model whose data has as many features as it has."""
    sizes = {"in_features": hidden, "out_features": hidden, "batch_size": batch_size}
    config = {"model": {"hidden_size": hidden, **model}, "data": sizes}
    facts = {"batch_size": batch_size, "model_size": 3 * hidden**2 if model_size else None}
    more = {"config": config, "facts": facts, "status": status, "pair_key": str(config)}
    return [run(arm, directory=f"{arm}-{hidden}-{batch_size}-{status}", **more) for arm in arms]


def alone(name, **facts):
    return run("fp32", facts=facts, pair_key=name, directory=name)


def ranks(strategy, world_size):
    return alone(strategy, parallel=strategy, world_size=world_size, global_batch_size=8 * world_size)


def sharded(arm, kind):
    config = {"parallel": {"strategy": "fsdp2", "mixed_precision": kind}}
    return run(arm, config=config, facts={"parallel": "fsdp2", "world_size": 2}, pair_key=arm)


WORKLOADS = {
    "seeds and arms": [run(arm, seed) for seed in (0, 1) for arm in ARMS],
    "models and batches, in order": [
        alone(f"{model} {size}", model=model, batch_size=size) for model in ("mlp", "gpt") for size in (16, 8, 128)
    ],
    "sizes of a model alone": [alone("10", model_size=10), alone("20", model_size=20)],
    "unsupported before its facts": beside_three(
        failed("tf32", 0, "unsupported", facts={"model_size": None, "device_name": None}, **OTHER_KEY)
    ),
    "killed before its facts": beside_three(failed("amp_bf16", 1, "failed", "SIGKILL", facts=BEGUN, **OTHER_KEY)),
    "recorded before there were ranks": beside_three(
        run("amp_bf16", facts={"global_batch_size": None}, directory="old", **OTHER_KEY)
    ),
    "agrees with two": [
        *(run("fp32"), run("fp32", facts={"device_name": "B"}, directory="b")),
        failed("tf32", 0, "unsupported", facts={"device_name": None, "model_size": None}, **OTHER_KEY),
    ],
    "devices of a kind": [
        *(run("fp32", seed, facts={"device": f"cuda:{seed}"}) for seed in range(3)),
        run("amp_bf16", facts={"device": "cuda:3"}, config={"device": "cuda:0/3"}),
    ],
    "sets of cores of two sizes": [
        run("fp32", facts={"device": f"cpu:0-{n - 1}", "device_name": f"a CPU, {n} cores"}) for n in (4, 8)
    ],
    "a setting": with_setting("optimizer", "weight_decay", (0.0, 0.1)),
    "a setting that may be null": with_setting("trainer", "max_grad_norm", (None, 1.0)),
    "settings that change nothing": [
        run("fp32"),
        run("fp32", config={"trainer": {"log_every": 1}, "tracking": {"mode": "offline"}}, directory="b", **OTHER_KEY),
    ],
    "a setting for each seed": [run(arm, seed, config={"data": {"order": seed}}) for seed in (0, 1) for arm in ARMS],
    "a size in several settings": [
        *(one for n in (64, 256) for one in sized(n, arms=["tf32"], status="unsupported", model_size=False)),
        *sized(256),
        *sized(64),
    ],
    "ranks": [ranks("ddp", 4)],
    "ranks beside a single process": [ranks("single", 1), ranks("fsdp2", 4)],
    "settings of an arm": [sharded("amp_bf16", "policy"), sharded("amp_bf16+mixed_precision=autocast", "autocast")],
    "searched batches": [
        searched(arm, n, None, facts={"global_batch_size": n}) for arm, n in (("fp32", 4), ("amp_bf16", 6))
    ],
}


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
        for arm in ARMS
    ]


SERIES = {
    "one number": sized(300) + sized(100) + sized(200),
    "a fact": [alone(str(lr), lr=lr) for lr in (0.2, 0.1)],
    "no number": [alone(name, model=name) for name in "ab"],
    "two at once": [entry for hidden in (64, 128) for size in (4, 8) for entry in sized(hidden, size)],
    "changing along": [one for h in (64, 128) for one in sized(h, inner=2 * h, outer=h, norm="layer" + "s" * h)],
    "strategies": strategies(("fsdp2", 2), ("ddp", 2)),
    "strategies with their ranks": strategies(("fsdp2", 2), ("single", 1), ("ddp", 2)),
    "a switch": [one for kept in (True, False) for one in strategies(("fsdp2", 2), reshard_after_forward=kept)],
    "strategies and ranks": strategies(*((name, size) for name in ("ddp", "fsdp2") for size in (2, 8))),
}


def test_workloads_and_series(golden):
    def grouped(entries):
        for one in group_workloads([Run(*entry) for entry in entries]):
            arms = ", ".join(f"{len(runs)} {arm}" for arm, runs in one.of_arms("fp32").items())
            yield f"{one.title}: {arms}, {one.facts['model_size']} parameters on {one.facts['device']}"

    def in_series(entries):
        for one in compare(entries, baseline="fp32", margin_pct=1.0).series:
            along = f"; {', '.join(one.lines)} ({', '.join(one.along)})" if one.along else ""
            yield f"{one.heading}: {one.key} {one.values}, workloads {one.workloads}{along}"

    workloads = {name: " | ".join(grouped(entries)) for name, entries in WORKLOADS.items()}
    series = {name: " | ".join(in_series(entries)) or "none" for name, entries in SERIES.items()}
    golden("workloads.md", document(workloads=workloads, series=series))
