"""Runs in pairs with the baseline, and why others are in none (`golden/pairs.md`)."""

from synthetic_records import contaminated, disproved, document, failed, run

from ampsweep.analysis.pairing import pair_runs
from ampsweep.analysis.runs import Run

METRICS = ("perf/step_ms", "memory/peak_allocated_gib", "val/loss")
HERE = {"packages": {"torch": "2.13", "wandb": "0.31"}, "num_threads": 2, "os": "Linux-6.1"}
UNKNOWN = {"contamination": {"verdict": "unknown", "reasons": ["x"]}}


def differing(other, here=(), **more):
    """A baseline run, and a run that may differ from it in facts, settings or environment."""
    of = {"environment": {"code_version": "0.2+bbb"}, "facts": {"data_fingerprint": "bb"}} | dict(here)
    return [run("fp32", **other), run("amp_bf16", directory="x", **of, **more)]


def conditions(device, **changed):
    of = {"facts": {"device": device}}
    return [run("fp32", environment=HERE, **of), run("amp_bf16", environment=HERE | changed, **of)]


OLD, CUDA_13 = {"pair_key": "old"}, {"environment": {"cuda": "13.0"}}
FAR = CUDA_13 | {"config": {"optimizer": {"weight_decay": 0.5}}, "directory": "far"}
REPEATS = [
    *(run("amp_bf16", step_ms=step_ms, directory=str(step_ms)) for step_ms in (4.0, 6.0)),
    contaminated("amp_bf16", step_ms=50.0, val_loss=5.0),
]
ALONE = {
    "cut short": run("amp_fp16", step_ms=900.0, cut_short="trainer.max_seconds"),
    "no loss": run("amp_fp16", val_loss=None),
    "contaminated": contaminated("amp_fp16"),
    "unknown contamination": run("amp_fp16", **UNKNOWN),
    "disproved": disproved("amp_fp16"),
} | {status: failed("amp_fp16", 0, status) for status in ("oom", "diverged", "unsupported", "interrupted", "failed")}
CASES = {
    "by their keys": [run("amp_bf16", 1), run("fp32", 0), run("amp_bf16", 0), run("fp32", 1)],
    "repeats": [run("fp32", step_ms=10.0), *REPEATS],
    **{name: [run("fp32"), entry] for name, entry in ALONE.items()},
    "other device": differing({"facts": {"device_name": "another CPU"}}),
    "other version": differing({"environment": {"code_version": "0.1+aaa"}} | OLD),
    "other data": differing({"facts": {"data_fingerprint": "aa"}} | OLD),
    "other setting": differing({"config": {"optimizer": {"weight_decay": 0.1}}}),
    "five others": differing(
        {"config": {"model": dict.fromkeys("abcde", 0)}}, config={"model": dict.fromkeys("abcde", 1)}
    ),
    "other torch": differing({"environment": {"packages": {"torch": "2.12"}}}),
    "a setting of null": differing({"config": {"data": {"path": None}}} | OLD, config={"data": {"path": "there"}}),
    "other state of the source": differing({"environment": {"code_version": "0.2+aaa"}} | OLD),
    "no baseline": [run("amp_bf16", 0)],
    "no baseline of the seed": [run("fp32", 1), run("amp_bf16", 0)],
    "baseline out of memory": [failed("fp32", 0, "oom"), run("amp_bf16", 0, environment={"num_threads": 2})],
    "the nearest of two": [run("fp32", **FAR), run("fp32", **CUDA_13), run("amp_bf16")],
    "torch": conditions("cpu", packages={"torch": "2.12", "wandb": "0.31"}),
    "CUDA": conditions("cpu", cuda="13.0"),
    "own code": conditions("cpu", own_code={"mine": "0a1b2c3d"}),
    "a variable that counts": conditions("cpu", variables={"NVIDIA_TF32_OVERRIDE": "1"}),
    "threads of a CPU": conditions("cpu", num_threads=4),
    "threads of cores": conditions("cpu:0-7", num_threads=4),
    "threads beside a GPU": conditions("cuda", num_threads=64),
    "wandb, system and flags": conditions(
        "cpu", packages={"torch": "2.13", "wandb": "0.30"}, os="Linux-6.2", flags={"tf32": True}
    ),
    "a variable that does not": conditions("cpu", variables={"CUDA_VISIBLE_DEVICES": "1"}),
}


def described(entries, baseline="fp32"):
    pairs, unpaired = pair_runs([Run(*entry) for entry in entries], baseline)
    for pair in pairs:
        figures = ", ".join(str(pair.figures(key)) for key in METRICS)
        yield f"{pair.arm} seed {pair.arm_runs[0].seed}: {figures}{'' if pair.completed else ', not completed'}"
    yield from (f"{one.arm} seed {one.seed}: {reason.sentence}" for one, reason in unpaired)


def test_pairs_and_why_others_have_none(golden):
    pairs = {name: " | ".join(described(entries)) for name, entries in CASES.items()}
    swapped = {name: " | ".join(described([run("fp32"), entry], "amp_fp16")) for name, entry in ALONE.items()}
    swapped["three arms"] = " | ".join(described([run(arm) for arm in ("fp32", "amp_bf16", "amp_fp16")], "amp_fp16"))
    golden("pairs.md", document(pairs=pairs, swapped=swapped))
