from pathlib import Path

from synthetic_records import contaminated, disproved, failed, run

from ampsweep.analysis.pairing import BaselineWithoutFigures, Difference, NoBaselineRun, pair_runs
from ampsweep.analysis.runs import Run

STEP_MS, PEAK_MEMORY, VAL_LOSS = "perf/step_ms", "memory/peak_allocated_gib", "val/loss"
HERE = {"packages": {"torch": "2.13", "wandb": "0.31"}, "num_threads": 2, "os": "Linux-6.1"}


def pair(*entries, baseline="fp32"):
    return pair_runs([Run(directory, record) for directory, record in entries], baseline)


def reasons(pairing):
    return {(run.arm, run.seed): reason for run, reason in pairing.unpaired}


def test_runs_pair_by_their_key_with_any_arm_as_the_baseline():
    pairing = pair(run("amp_bf16", 1), run("fp32", 0), run("amp_bf16", 0), run("fp32", 1))
    assert {(pair.baseline_runs[0].seed, pair.arm_runs[0].seed) for pair in pairing.pairs} == {(0, 0), (1, 1)}
    assert pairing.unpaired == ()
    pairing = pair(run("fp32"), run("amp_bf16"), run("amp_fp16"), baseline="amp_bf16")
    assert {pair.arm for pair in pairing.pairs} == {"fp32", "amp_fp16"}


def test_repeats_are_averaged_without_the_contaminated_speeds():
    entries = [run("fp32", step_ms=10.0), run("amp_bf16", step_ms=4.0), run("amp_bf16", step_ms=6.0, directory="again")]
    hot = contaminated("amp_bf16", step_ms=50.0, val_loss=5.0, directory="hot")
    (only,) = pair(*entries, hot).pairs
    assert (only.figures(STEP_MS), only.figures(VAL_LOSS)) == ((10.0, 5.0), (2.0, 3.0))


def test_figures_that_either_side_lacks_are_absent():
    for arm, figures in (
        (run("amp_fp16", step_ms=900.0, cut_short="trainer.max_seconds"), ((100.0, 900.0), True, None)),
        (run("amp_fp16", val_loss=None), ((100.0, 100.0), True, None)),
        (contaminated("amp_fp16"), (None, True, (2.0, 2.0))),
        (run("amp_fp16", contamination={"verdict": "unknown", "reasons": ["x"]}), ((100.0, 100.0), True, (2.0, 2.0))),
    ):
        (only,) = pair(run("fp32"), arm).pairs
        assert (only.figures(STEP_MS), only.figures(PEAK_MEMORY) is not None, only.figures(VAL_LOSS)) == figures
        assert only.completed == (arm[1].cut_short is None)
        (swapped,) = pair(run("fp32"), arm, baseline="amp_fp16").pairs
        assert swapped.figures(STEP_MS) == (figures[0] and figures[0][::-1])


def test_runs_without_valid_figures_are_in_no_pair():
    lost = [failed("amp_fp16", 0, status) for status in ("oom", "diverged", "unsupported", "interrupted", "failed")]
    for entry, outcome in [*((entry, entry[1].status) for entry in lost), (disproved("amp_fp16"), "disproved")]:
        pairing = pair(run("fp32"), entry)
        assert pairing.pairs == ()
        assert {of: reason.kind() for of, reason in reasons(pairing).items()} == {("fp32", 0): "no_other_arm"}
        swapped = reasons(pair(run("fp32"), entry, baseline="amp_fp16"))
        assert swapped == {("fp32", 0): BaselineWithoutFigures(baseline="amp_fp16", outcome=outcome)}


def test_differences_from_the_nearest_baseline_run_are_named():
    for other, named in (
        ({"facts": {"device_name": "another CPU"}}, ("device_name", "another CPU", "a CPU")),
        ({"environment": {"code_version": "0.1+aaa"}, "pair_key": "old"}, ("version", "0.1", "0.2")),
        ({"facts": {"data_fingerprint": "aa"}, "pair_key": "old"}, ("data_fingerprint", "aa", "bb")),
        ({"config": {"optimizer": {"weight_decay": 0.1}}}, ("optimizer.weight_decay", "0.1", "0.0")),
        ({"environment": {"packages": {"torch": "2.12"}}}, ("packages.torch", "2.12", "not set")),
        ({"config": {"data": {"path": None}}, "pair_key": "old"}, ("data.path", "null", "there")),
        ({"environment": {"code_version": "0.2+aaa"}, "pair_key": "old"}, None),
    ):
        here = {"environment": {"code_version": "0.2+bbb"}, "facts": {"data_fingerprint": "bb"}}
        here["config"] = {"data": {"path": "there"}} if "data" in other.get("config", {}) else {}
        pairing = pair(run("fp32", **other), run("amp_bf16", directory="x", **here))
        assert reasons(pairing)["amp_bf16", 0].differences == (() if named is None else (Difference(*named),))
        assert Path("runs/x") in {run.directory for run, _ in pairing.unpaired}


def test_a_missing_or_broken_baseline_is_the_reason():
    assert reasons(pair(run("amp_bf16", 0)))["amp_bf16", 0] == NoBaselineRun(baseline="fp32")
    reason = reasons(pair(run("fp32", 1), run("amp_bf16", 0)))["amp_bf16", 0]
    assert reason == NoBaselineRun(baseline="fp32", seed=0)
    pairing = pair(failed("fp32", 0, "oom"), run("amp_bf16", 0, environment={"num_threads": 2}))
    assert reasons(pairing)["amp_bf16", 0] == BaselineWithoutFigures(baseline="fp32", outcome="oom")
    near = {"environment": {"cuda": "13.0"}}
    far = near | {"config": {"optimizer": {"weight_decay": 0.5}}, "directory": "far"}
    found = reasons(pair(run("fp32", **far), run("fp32", **near), run("amp_bf16")))["amp_bf16", 0]
    assert [difference.key for difference in found.differences] == ["cuda"], "of the nearest of two runs"


def test_conditions_that_change_figures_keep_runs_apart():
    cpu, cores, gpu = ({"facts": {"device": name}} for name in ("cpu", "cpu:0-7", "cuda"))
    for changed, of, is_pair in (
        ({"packages": {"torch": "2.12", "wandb": "0.31"}}, cpu, False),
        ({"cuda": "13.0"}, cpu, False),
        ({"own_code": {"mine": "0a1b2c3d"}}, cpu, False),
        ({"variables": {"NVIDIA_TF32_OVERRIDE": "1"}}, cpu, False),
        ({"num_threads": 4}, cpu, False),
        ({"num_threads": 4}, cores, False),
        ({"num_threads": 64}, gpu, True),
        ({"packages": {"torch": "2.13", "wandb": "0.30"}, "os": "Linux-6.2", "flags": {"tf32": True}}, cpu, True),
        ({"variables": {"CUDA_VISIBLE_DEVICES": "1"}}, cpu, True),
    ):
        pairing = pair(run("fp32", environment=HERE, **of), run("amp_bf16", environment=HERE | changed, **of))
        assert len(pairing.pairs) == is_pair
        assert is_pair or reasons(pairing)["amp_bf16", 0].kind() == "nearest_run_differs"
