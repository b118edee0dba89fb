"""`ampsweep report wandb://... --arm-key KEY`: the verdict on runs that no part of the suite has logged."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_project import add_project, add_run
from wandb_server import WandbServer

CHOSEN = ("--arm-key", "mixed_precision")


@pytest.fixture(scope="module")
def served() -> Iterator[WandbServer]:
    with WandbServer() as server:
        add_project(server, "theirs", models=["small"], num_seeds=6)
        add_project(server, "many")
        for flag in (False, True):  # a second project, with flags for arms
            for seed in range(3):
                add_run(server, "flags", "small", "bf16" if flag else "no", seed, bf16=flag, name=f"{flag}-{seed}")
        yield server


@pytest.fixture
def report(served, machine, monkeypatch, ampsweep):
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    return lambda *arguments: ampsweep("report", *arguments)


def workloads(project: str):
    return json.loads(Path("wandb_reports/team", project, "all/comparison.json").read_text())["workloads"]


def test_foreign_runs_get_a_verdict_and_every_fault_is_named(report):
    ended = report("wandb://team/theirs", *CHOSEN)
    assert ended.code == 0
    loaded, left_out = ended.err.splitlines()
    assert loaded.startswith("wandb://team/theirs: 16 runs loaded, 0 unchanged, in ")
    assert left_out == "left out: run small-bf16-5: has no seed in its config"
    (workload,) = workloads("theirs")
    arms = {arm["arm"]: arm for arm in workload["arms"]}
    assert {name: (arm["num_pairs"], arm["statuses"]) for name, arm in arms.items()} == {
        "no": (0, {"completed": 6}),
        "bf16": (5, {"completed": 5}),
        "fp16": (3, {"completed": 3, "diverged": 1, "failed": 1}),
    }
    assert workload["verdict"]["sentence"].startswith("Train this in bf16: ")
    judged = {arm["arm"]: arm["judgements"] for arm in workload["verdict"]["arms"]}
    (parity,) = judged["bf16"]["parities"]
    assert (judged["bf16"]["speed"], judged["bf16"]["memory"]) == ("faster", "saves")
    assert (parity["metric"], parity["verdict"], parity["n"]) == ("eval/loss", "equivalent", 5)
    assert arms["bf16"]["speedup"]["value"] == pytest.approx(2.0, rel=0.02)
    assert arms["bf16"]["memory_saved_bytes"]["value"] == 3 * 2**30
    for said in (
        "Left out: run small-bf16-5: has no seed in its config.",
        "The arms also differ in learning_rate: 0.0005 (bf16, fp16) or 0.001 (no), warmup_ratio: ",
        "its state on W&B is crashed",
        "its last eval/loss is NaN",
        "no eval/loss was logged; there are eval_loss, ",
        "there is no run of seed 1, with which the baseline has one",
        "unchecked",
    ):
        assert said in ended.words, said
    page = Path("wandb_reports/team/theirs/all/comparison.html").read_text()
    for said in (
        "the largest of W&amp;B&#x27;s samples",
        "wall time by W&amp;B&#x27;s _runtime",
        "eval/loss gap",
        "process memory",
    ):
        assert said in page.replace("&#39;", "&#x27;"), said
    assert "peak memory" not in page


@pytest.mark.nightly
def test_time_metric_and_flags_can_be_chosen(report):
    accuracy = ("--metric", "eval/accuracy", "--time-key", "train_runtime")
    assert report("wandb://team/theirs", *CHOSEN, *accuracy).code == 0
    (workload,) = workloads("theirs")
    of_bf16 = next(arm for arm in workload["arms"] if arm["arm"] == "bf16")
    assert of_bf16["step_ms"] == pytest.approx(360, rel=0.01)  # 20 s of start, 10 s of steps, 6 s of evaluation
    (parity,) = workload["verdict"]["arms"][0]["judgements"]["parities"]
    found = [parity[fact] for fact in ("metric", "is_higher_better", "gap", "verdict")]
    assert found == ["eval/accuracy", True, 0.0, "equivalent"]
    assert report("wandb://team/flags", "--arm-key", "bf16").code == 0
    (workload,) = workloads("flags")
    assert [arm["arm"] for arm in workload["arms"]] == ["no bf16", "bf16"]


def test_wrong_choices_are_one_sentence(report):
    theirs = "wandb://team/theirs"
    known = "no run has it; keys with several values are mixed_precision, "
    for arguments, said in {
        "": f"error: {theirs}: none of its runs is of this suite; --arm-key KEY compares others by the config key ",
        "--arm-key mixed_precison": f"error: {theirs}: --arm-key mixed_precison: {known}",
        "--seed-key seed": "error: --seed-key and --time-key need --arm-key, the config key ",
        "--arm-key mixed_precision --publish": "error: --publish shows runs that this suite tracked, --arm-key reads",
    }.items():
        ended = report(theirs, *arguments.split())
        assert (ended.code, ended.out) == (2, ""), arguments
        assert said in ended.err


@pytest.mark.nightly
def test_only_what_is_new_or_read_otherwise_is_loaded(report, ampsweep):
    theirs = "wandb://team/theirs"

    def loaded(*arguments: str) -> str:
        return " ".join(report(theirs, *arguments).err.splitlines()[0].split()[1:6])

    first = report(theirs, *CHOSEN)
    assert loaded(*CHOSEN) == "0 runs loaded, 16 unchanged,"
    of_directory = report("wandb_reports/team/theirs/all").out
    assert of_directory[:2000] == first.out[:2000], "a directory of runs like any other"
    assert loaded(*CHOSEN, "--time-key", "train_runtime") == "16 runs loaded, 0 unchanged,"
    for arguments, said in {
        "--metric eval/los": "error: --metric eval/los: no run has logged it; there are eval/loss, ",
        "--metric train_runtime": "--metric train_runtime: its name does not say its goal; add --goal ",
        "--baseline fp32": "--baseline fp32: no run is of this arm; there are bf16, fp16, no",
    }.items():
        ended = report(theirs, *CHOSEN, *arguments.split())
        assert (ended.code, said in ended.err) == (2, True), ended.err
    ended = report(theirs, "--arm-key", "learning_rate")
    assert "--baseline is needed: which of 0.0005, 0.001 are the others compared with?" in ended.err
    ended = ampsweep("sync", "wandb_reports/team/theirs/all")
    assert ended.code == 2
    assert ended.err.endswith("all: its runs are copies of runs on W&B, which are their authors' own\n")


@pytest.mark.nightly
def test_sixty_foreign_runs_are_judged_within_20_seconds(report):
    began = time.monotonic()
    ended = report("wandb://team/many", *CHOSEN)
    assert (ended.code, time.monotonic() - began < 20) == (0, True)
    assert [of["verdict"]["recommendation"]["arm"] for of in workloads("many")] == ["bf16", "bf16"]
    assert [of["title"] for of in workloads("many")] == ["model_name_or_path large", "model_name_or_path small"]
