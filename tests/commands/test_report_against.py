"""`ampsweep report --against OLD NEW`: what regressed between two sweeps, what is not known, the exit code for CI."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))

from synthetic_records import LOST_BITS, contaminated, disproved, failed, run, searched, sweep

TIMES, LOSSES, PEAKS = [100.0, 101.0, 99.0], [2.0, 2.1, 1.9], [1000.0, 1001.0, 999.0]
BASE = [*sweep("fp32", TIMES, val_loss=LOSSES, peak_mib=PEAKS), *sweep("amp_bf16", TIMES, val_loss=LOSSES)]
GOOD = "fp32 and amp_bf16 are as fast, as small and learn as well, within the margins (n=3)"


def scaled(values, *factors):
    return [value * factor for value, factor in zip(values, factors, strict=True)]


def changed(arm="amp_bf16", *, step_ms=TIMES, val_loss=LOSSES, **more):
    """NEW, of which one arm differs."""
    kept = [entry for entry in BASE if entry[1].arm != arm]
    return [*kept, *sweep(arm, step_ms, val_loss=val_loss, **more)]


def of_arm(arm):
    return [entry for entry in BASE if entry[1].arm == arm]


def with_runs(*entries):
    """The base, with other runs in place of those of the same arm and seed."""
    taken = {(record.arm, record.identity.seed) for _, record in entries}
    return [*(of for of in BASE if (of[1].arm, of[1].identity.seed) not in taken), *entries]


@pytest.fixture
def against(tmp_path, ampsweep):
    """The command's end for two sweeps of records."""

    def against(old, new, *arguments):
        for side, entries in (("old", old), ("new", new)):
            shutil.rmtree(tmp_path / side, ignore_errors=True)
            for directory, record in entries:
                place = tmp_path / side / directory.name
                place.mkdir(parents=True, exist_ok=True)
                replace(record, run_id=f"{side} {record.run_id}").write(place)
        return ampsweep("report", "--against", "old", "new", *arguments)

    return against


SLOWER = scaled(TIMES, 1.25, 1.24, 1.26)
OOM = "out of memory in forward of step 3: 1 GiB asked for"
NOT_KNOWN = "No regression is shown, but not known:"
ANSWERS = {
    "equal": (BASE, 0, f"No regression: {GOOD}."),
    "slower": (changed(step_ms=SLOWER), 3, "Regression: amp_bf16 is slower, 0.800x [0.784, 0.816], n=3."),
    "slower within the margin": (changed(step_ms=scaled(TIMES, 1.01, 1.011, 1.012)), 0, f"No regression: {GOOD}."),
    "faster": (
        changed(step_ms=scaled(TIMES, 0.8, 0.81, 0.79)),
        0,
        f"No regression: {GOOD.replace('well', 'well or better')}.",
    ),
    "noisy": (changed(step_ms=scaled(TIMES, 0.9, 1.1, 1.0)), 0, f"{NOT_KNOWN} the speed of amp_bf16."),
    "larger": (changed(peak_mib=1030.0), 3, "Regression: amp_bf16 needs 30.0 MiB more peak memory, +3.00%, n=3."),
    "learns worse": (
        changed(val_loss=scaled(LOSSES, 1.05, 1.051, 1.049)),
        3,
        "Regression: amp_bf16 has a worse val loss, gap +0.10 [+0.09, +0.11] above ±0.020 (1%), n=3.",
    ),
    "contaminated": (
        with_runs(*(contaminated("amp_bf16", seed, step_ms=900.0, val_loss=LOSSES[seed]) for seed in range(3))),
        0,
        f"{NOT_KNOWN} the speed of amp_bf16.",
    ),
    "out of memory": (
        with_runs(failed("amp_bf16", 1, "oom", OOM)),
        3,
        "Regression: amp_bf16 is out of memory in seed 1, where OLD completed (in forward of step 3: 1 GiB asked for).",
    ),
    "disproved": (
        with_runs(
            *(disproved("fp32", seed, config={"precision": {"mode": "fp32", "tf32": False}}) for seed in range(3))
        ),
        3,
        f"Regression: fp32 is disproved in seeds 0, 1, 2, where OLD completed ({LOST_BITS}).",
    ),
    "interrupted": (
        with_runs(failed("amp_bf16", 1, "interrupted")),
        0,
        f"{NOT_KNOWN} the speed and val loss of amp_bf16.",
    ),
    "an arm is missing": (of_arm("fp32"), 0, f"{NOT_KNOWN} all of amp_bf16."),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer_and_the_exit_code(name, against):
    new, code, sentence = ANSWERS[name]
    ended = against(BASE, new)
    assert (ended.code, ended.err) == (code, "")
    assert sentence in ended.words


def test_old_and_new_swapped_are_the_opposite(against):
    for figures in ({"step_ms": SLOWER}, {"peak_mib": 1030.0}, {"val_loss": scaled(LOSSES, 1.05, 1.051, 1.049)}):
        new = changed(**figures)
        assert [against(BASE, new).code, against(new, BASE).code] == [3, 0], figures
        assert "as well or better" in against(new, BASE).words


def test_what_was_changed_on_purpose_is_said_and_unpairs_nothing(against):
    def on(torch, device, version):
        more = {"environment": {"packages": {"torch": torch}, "code_version": version, "own_code": {"nets": version}}}
        more |= {"facts": {"device_name": device, "experiment": version}, "attempts": [{"host": "a"}]}
        more |= {"config": {"data": {"path": f"/{version}"}, "numerics": {"watch": device == "a GPU"}}}
        return [run("fp32", seed, step_ms=TIMES[seed], val_loss=LOSSES[seed], **more) for seed in range(3)]

    old = on("2.12", "a GPU", "0.1")
    ended = against(old, on("2.13", "another GPU", "0.2"))
    assert "No regression: fp32 is as fast, as small and learns as well, within the margins (n=3)." in ended.words
    (said,) = [line for line in ended.out.splitlines() if line.startswith("Changed")]
    assert said == (
        "Changed from OLD to NEW: device model a GPU -> another GPU, ampsweep 0.1 -> 0.2, torch 2.12 -> 2.13, "
        "own_code.nets 0.1 -> 0.2."
    )
    assert "No condition changed from OLD to NEW that the records know" in against(old, old).out
    assert "Further figures" not in (Path.cwd() / "new/against.md").read_text(), "there are none"


def test_another_workload_is_no_pair(against):
    """Where nothing pairs the input is wrong; else the rest is compared."""
    larger = [run("fp32", seed, facts={"batch_size": 16}, step_ms=900.0) for seed in range(3)]
    ended = against(of_arm("fp32"), larger)
    assert (ended.code, ended.out) == (2, "")
    here = Path.cwd()
    why = "fp32: the nearest OLD run differs in batch_size (8 there, 16 here)"
    assert ended.err == f"error: {here}/new has no run of a training that completed in {here}/old: {why}\n"
    ended = against([*BASE, *larger], BASE)
    assert (ended.code, f"{NOT_KNOWN} fp32 in workloads of OLD alone." in ended.words) == (0, True)
    ended = against(BASE, [*BASE, *larger])
    assert (ended.code, f"No regression: {GOOD}." in ended.words) == (0, True)
    differs = "the nearest OLD run differs in batch_size (8 there, 16 here) (seeds 0, 1, 2)"
    assert f"NEW fp32 not paired, compared with nothing: {differs}" in ended.words
    old = [run("fp32", facts={"data_fingerprint": "a"}, config={"model": {"dropout": 0.1}})]
    for key, other in (("lr", 0.5), ("model_size", 7), ("data_fingerprint", "b")):
        new = run("fp32", facts={"data_fingerprint": "a", key: other}, config={"model": {"dropout": 0.1}})
        assert f"the nearest OLD run differs in {key} (" in against(old, [new]).err
    new = run("fp32", facts={"data_fingerprint": "a"}, config={"model": {"dropout": 0.2}})
    assert "differs in model.dropout (0.1 there, 0.2 here)" in against(old, [new]).err


def test_seeds_pair_and_repeats_are_averaged(against):
    repeats = [run("fp32", 0, step_ms=step_ms, val_loss=2.0, directory=f"again{step_ms}") for step_ms in (90.0, 110.0)]
    new = [*repeats, *(of for of in of_arm("fp32") if of[1].identity.seed), run("fp32", 7)]
    ended = against(of_arm("fp32"), new)
    assert (ended.code, "(n=3)" in ended.words) == (0, True)
    assert "NEW fp32 not paired, compared with nothing: there is no OLD run with seed 7 (seed 7)" in ended.words
    ended = against(BASE, [of for of in BASE if of[1].identity.seed])
    assert f"{NOT_KNOWN} the speed and val loss of fp32 and amp_bf16." in ended.words
    assert "step time: 0%, n=2; it takes at least 3 pairs to tell" in ended.words
    assert ended.out.count("not paired, compared with nothing: there is no NEW run with seed 0 (seed 0)") == 2


def test_margins_can_be_chosen(against):
    new = changed(step_ms=SLOWER, val_loss=scaled(LOSSES, 1.05, 1.051, 1.049))
    assert against(BASE, new, "--tolerance-pct", "40", "--margin-pct", "10").code == 0
    assert against(BASE, new, "--tolerance-pct", "40").code == 3
    assert against(BASE, new, "--margin-pct", "10").code == 3


def test_a_sweep_against_itself(copied, ampsweep):
    """Of real records; the files lie beside NEW."""
    ended = ampsweep("report", copied.directory, "--against", copied.directory, "--format", "json")
    assert (ended.code, ended.err) == (0, "")
    data = json.loads(ended.out)
    assert (copied.directory / "against.json").read_text() == ended.out
    assert (copied.directory / "against.html").read_text().count("OLD and NEW are the same runs") == 1
    assert data["regressions"] == []
    (workload,) = data["workloads"]
    growth = {arm["new"]["arm"]: arm["memory"]["growth_pct"] for arm in workload["arms"]}
    same = {"value": 0.0, "n": 2, "low": None, "high": None, "exact": True}
    assert growth == {"fp32": same, "tf32": None, "amp_bf16": same}
    assert "tf32" not in data["sentence"], "unsupported on a CPU, as it was"


def test_wrong_input_is_one_sentence(against, ampsweep):
    against(BASE, BASE)
    for arguments, said in {
        ("old", "new", "--against", "old"): "--against compares one directory with another",
        ("new", "--against", "nosuch"): "nosuch: no such directory",
        ("new", "--against", "."): "6 runs of",
        ("new", "--against", "old", "--baseline", "fp32"): "--baseline is not for --against",
        ("new", "--tolerance-pct", "5"): "--tolerance-pct needs --against",
        ("new", "--against", "old", "--tolerance-pct", "0"): "--tolerance-pct 0: must be greater than 0",
        ("new", "--against", "old", "--metric", "val/f1"): "--metric val/f1: no run has logged it",
    }.items():
        ended = ampsweep("report", *arguments)
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), arguments
        assert said in ended.err
    joined = ampsweep("report", "old", "new").words
    assert joined.count("the directories share 6 points (arm and seed), whose runs count as repeats") == 0
    assert joined.count("The directories share 6 points (arm and seed), whose runs count as repeats") == 1


def test_searches_are_left_out_and_unwritten_files_change_no_exit_code(against, monkeypatch):
    def write_comparison(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ampsweep.commands.report.write_comparison", write_comparison)
    ended = against([*BASE, searched("fp32", 4, None)], [*changed(step_ms=SLOWER), searched("fp32", 8, None)])
    assert ended.code == 3
    assert ended.err.endswith("cannot be written: No space left on device\n")
    assert "2 search runs left out" in ended.out
