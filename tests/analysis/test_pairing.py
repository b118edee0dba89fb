from pathlib import Path

import pytest
from synthetic_records import contaminated, disproved, failed, run

from ampsweep.analysis.pairing import BaselineWithoutFigures, Difference, NoBaselineRun, pair_runs
from ampsweep.analysis.runs import Run

STEP_MS, PEAK_MEMORY, VAL_LOSS = "perf/step_ms", "memory/peak_allocated_gib", "val/loss"


def pair(*entries, baseline="fp32"):
    return pair_runs([Run(directory, record) for directory, record in entries], baseline)


def reasons(pairing):
    return {(run.arm, run.seed): reason for run, reason in pairing.unpaired}


def test_runs_pair_by_their_key_whatever_their_order():
    pairing = pair(run("amp_bf16", 1), run("fp32", 0), run("amp_bf16", 0), run("fp32", 1))
    assert {(pair.baseline_runs[0].seed, pair.arm_runs[0].seed) for pair in pairing.pairs} == {(0, 0), (1, 1)}
    assert pairing.unpaired == ()


def test_any_arm_can_be_the_baseline():
    pairing = pair(run("fp32"), run("amp_bf16"), run("amp_fp16"), baseline="amp_bf16")
    assert {pair.arm for pair in pairing.pairs} == {"fp32", "amp_fp16"}


def test_repeats_are_averaged():
    pairing = pair(
        run("fp32", step_ms=10.0), run("amp_bf16", step_ms=4.0), run("amp_bf16", step_ms=6.0, directory="again")
    )
    (only,) = pairing.pairs
    assert only.figures(STEP_MS) == (10.0, 5.0)


def test_a_run_cut_short_gives_speed_but_no_final_figures():
    (only,) = pair(run("fp32"), run("amp_fp16", step_ms=900.0, cut_short="trainer.max_seconds")).pairs
    assert only.figures(STEP_MS) == (100.0, 900.0)
    assert only.figures(VAL_LOSS) is None
    assert not only.completed


def test_a_figure_that_either_side_lacks_is_absent():
    (only,) = pair(run("fp32"), run("amp_bf16", val_loss=None)).pairs
    assert only.completed
    assert only.figures(VAL_LOSS) is None


@pytest.mark.parametrize("status", ["oom", "diverged", "unsupported", "interrupted", "failed"])
def test_a_run_that_did_not_complete_is_in_no_pair(status):
    pairing = pair(run("fp32"), failed("amp_fp16", 0, status, "the reason\nand a traceback"))
    assert pairing.pairs == ()
    assert {of: reason.kind() for of, reason in reasons(pairing).items()} == {("fp32", 0): "no_other_arm"}


@pytest.mark.parametrize("arm", ["fp32", "amp_bf16"])
def test_a_run_whose_proof_contradicts_its_mode_is_in_no_pair(arm):
    other = {"fp32": "amp_bf16", "amp_bf16": "fp32"}[arm]
    pairing = pair(disproved(arm), run(other))
    assert pairing.pairs == ()
    expected = {"fp32": "no_other_arm", "amp_bf16": "baseline_without_figures"}
    assert {of: reason.kind() for of, reason in reasons(pairing).items()} == {(other, 0): expected[other]}


@pytest.mark.parametrize("arm", ["fp32", "amp_bf16"])
def test_a_contaminated_run_gives_memory_and_loss_but_no_speed(arm):
    other = {"fp32": "amp_bf16", "amp_bf16": "fp32"}[arm]
    pairing = pair(contaminated(arm), run(other))
    (only,) = pairing.pairs
    assert only.completed
    assert only.figures(STEP_MS) is None
    assert only.figures(PEAK_MEMORY) is not None
    assert only.figures(VAL_LOSS) == (2.0, 2.0)
    assert pairing.unpaired == ()


def test_of_repeats_the_uncontaminated_ones_give_the_speed():
    (only,) = pair(
        run("fp32", step_ms=10.0),
        run("amp_bf16", step_ms=5.0, val_loss=2.0),
        contaminated("amp_bf16", step_ms=50.0, val_loss=4.0, directory="again"),
    ).pairs
    assert only.figures(STEP_MS) == (10.0, 5.0)
    assert only.figures(VAL_LOSS) == (2.0, 3.0)


def test_a_run_of_which_nothing_is_known_gives_its_speed():
    unknown = {"verdict": "unknown", "reasons": ["too short to tell"]}
    (only,) = pair(
        run("fp32", contamination=unknown), run("amp_bf16", contamination={"verdict": "clean", "reasons": []})
    ).pairs
    assert only.figures(STEP_MS) == (100.0, 100.0)


def test_a_failed_baseline_is_the_reason_of_its_partner():
    pairing = pair(failed("fp32", 0, "oom"), run("amp_bf16", 0))
    assert reasons(pairing) == {("amp_bf16", 0): BaselineWithoutFigures(baseline="fp32", outcome="oom")}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"facts": {"device_name": "another CPU"}}, ("device_name", "another CPU", "a CPU")),
        ({"environment": {"code_version": "0.1+aaa"}, "pair_key": "old"}, ("version", "0.1", "0.2")),
        ({"facts": {"data_fingerprint": "aa"}, "pair_key": "old"}, ("data_fingerprint", "aa", "bb")),
        ({"config": {"optimizer": {"weight_decay": 0.1}}}, ("optimizer.weight_decay", "0.1", "0.0")),
        ({"environment": {"packages": {"torch": "2.12"}}}, ("packages.torch", "2.12", "not set")),
    ],
    ids=["device", "version", "data", "setting", "torch"],
)
def test_what_keeps_a_run_from_its_nearest_baseline_is_named(other, named):
    here = {"environment": {"code_version": "0.2+bbb"}, "facts": {"data_fingerprint": "bb"}}
    pairing = pair(run("fp32", **other), run("amp_bf16", **here))
    assert reasons(pairing)["amp_bf16", 0].differences == (Difference(*named),)


def test_a_missing_baseline_and_a_missing_seed_are_told_apart():
    assert reasons(pair(run("amp_bf16", 0)))["amp_bf16", 0] == NoBaselineRun(baseline="fp32")
    reason = reasons(pair(run("fp32", 1), run("amp_bf16", 0)))["amp_bf16", 0]
    assert reason == NoBaselineRun(baseline="fp32", seed=0)


def test_keys_that_differ_for_no_recorded_reason_stay_unknown():
    pairing = pair(run("fp32", pair_key="a"), run("amp_bf16", pair_key="b", directory="x"))
    assert reasons(pairing)["amp_bf16", 0].differences == ()
    assert Path("runs/x") in {run.directory for run, _ in pairing.unpaired}


@pytest.mark.parametrize(
    "changed",
    [
        {"packages": {"torch": "2.12", "wandb": "0.31"}},
        {"cuda": "13.0"},
        {"own_code": {"mine": "0a1b2c3d"}},
        {"variables": {"NVIDIA_TF32_OVERRIDE": "1"}},
        {"num_threads": 4},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_runs_under_other_conditions_are_no_pair(changed):
    here = {"packages": {"torch": "2.13", "wandb": "0.31"}, "num_threads": 2, "os": "Linux-6.1"}
    pairing = pair(run("fp32", environment=here), run("amp_bf16", environment=here | changed))
    assert pairing.pairs == ()
    assert reasons(pairing)["amp_bf16", 0].kind() == "nearest_run_differs"


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        ({"config": {"trainer": {"max_grad_norm": None}}}, {"config": {"trainer": {"max_grad_norm": 1.0}}}, "null 1.0"),
        (
            {"environment": {"code_version": "0.1+ab"}},
            {"environment": {"code_version": "0.1+cd"}},
            "",
        ),
    ],
)
def test_the_difference_is_one_that_the_pair_key_has(there, here, expected):
    pairing = pair(run("fp32", pair_key="a", **there), run("amp_bf16", pair_key="b", **here))
    told = reasons(pairing)["amp_bf16", 0].differences
    assert " ".join(f"{one.there} {one.here}" for one in told) == expected


def test_what_changes_no_figure_keeps_no_runs_apart():
    here = {
        "packages": {"torch": "2.13", "wandb": "0.31"},
        "os": "Linux-6.1",
        "variables": {"CUDA_VISIBLE_DEVICES": "0"},
    }
    there = here | {"packages": {"torch": "2.13", "wandb": "0.30"}, "os": "Linux-6.2", "flags": {"tf32": True}}
    there["variables"] = {"CUDA_VISIBLE_DEVICES": "1"}
    assert len(pair(run("fp32", environment=here), run("amp_bf16", environment=there)).pairs) == 1


def test_threads_of_the_host_keep_no_runs_of_a_gpu_apart():
    gpu = {"facts": {"device": "cuda"}}
    few, many = {"num_threads": 2}, {"num_threads": 64}
    assert len(pair(run("fp32", environment=few, **gpu), run("amp_bf16", environment=many, **gpu)).pairs) == 1


def test_threads_keep_runs_apart_on_sets_of_cores_too():
    cores = {"facts": {"device": "cpu:0-7"}}
    few, many = {"num_threads": 4}, {"num_threads": 8}
    assert pair(run("fp32", environment=few, **cores), run("amp_bf16", environment=many, **cores)).pairs == ()


def test_a_baseline_that_broke_early_is_the_reason():
    pairing = pair(failed("fp32", 0, "oom"), run("amp_bf16", 0, environment={"num_threads": 2}))
    assert reasons(pairing)["amp_bf16", 0].kind() == "baseline_without_figures"
