"""`ampsweep compare` and sweeps of any script: commands run one by one, recorded, compared, and not repeated."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integrations"))

import own_loop

from ampsweep.integrations.script.launcher import EndedCommand
from ampsweep.records import RunRecord, find_records
from ampsweep.sweep import command_runs

COMPARE = ("compare", "--into", "runs", "--seeds", "0,1")
TWO = ("fp32: python t.py --seed {seed}", "bf16: python t.py --bf16 --seed {seed}")
SWEEP = """
program: t.py
method: grid
metric: {name: accuracy, goal: maximize}
parameters:
  bf16: {values: [false, true]}
  n-layer: {values: [1, 2]}
  seed: {values: [3, 4]}
command: ["${env}", "${interpreter}", "${program}", "${args_no_boolean_flags}"]
"""


@pytest.fixture
def commands(monkeypatch):
    """The commands that were run: instead of a process with torch, each trains a few steps here."""
    Path("t.py").touch()
    given = []

    def run_recorded(words, options):
        given.append(list(words))
        options.output.write(b"hello\nt.py: error: no GPU\n")
        if Path("broken").exists() and "--bf16" in words:
            return EndedCommand(
                exit_code=2, directories=(), records=(), why_none="no Python process of it imported torch"
            )
        how = {"arm": options.arm, "experiment": options.experiment, "source": "script", "metric": options.metric}
        precision = "bf16" if "--bf16" in words else "fp32"
        run, _ = own_loop.train(options.into, precision, options.seed, **how, goal=options.goal)
        stopped_by = "SIGTERM" if Path("stop").exists() else None
        records = (RunRecord.read(run.directory),)
        return EndedCommand(exit_code=0, directories=(run.directory,), records=records, stopped_by=stopped_by)

    monkeypatch.setattr(command_runs, "run_recorded", run_recorded)
    return given


def workloads(directory="runs"):
    return json.loads((Path(directory) / "comparison.json").read_text())["workloads"]


def test_seeds_come_first_and_what_is_finished_is_not_repeated(ampsweep, commands):
    ended = ampsweep(*COMPARE, *TWO)
    assert (ended.code, [run.split()[1] for run in ended.runs]) == (0, ["fp32", "bf16", "fp32", "bf16"])
    assert commands == [["python", "t.py", *bf16, "--seed", seed] for seed in "01" for bf16 in ([], ["--bf16"])]
    (workload,) = workloads()
    assert [(arm["arm"], arm["num_completed_pairs"]) for arm in workload["arms"]] == [("fp32", 0), ("bf16", 2)]
    again = ampsweep(*COMPARE[:-1], "0,1,2", *TWO)
    assert again.said[0] == "4 of 6 runs finished earlier"
    assert (again.code, len(commands), "comparison.html" in again.out) == (0, 6, True)
    assert {path.read_bytes() for path in Path("runs").glob("*/output.log")} == {b"hello\nt.py: error: no GPU\n"}


def test_a_command_without_a_record_is_a_failed_run_of_its_arm(ampsweep, commands):
    Path("broken").touch()
    ended = ampsweep(*COMPARE, *TWO)
    assert (ended.code, len(commands)) == (1, 4), "the others go on"
    assert ended.runs[1].endswith("exit code 2: t.py: error: no GPU")
    assert "refused  bf16  failed in 2 of 2 runs" in ended.out
    assert len(workloads()) == 1
    Path("broken").unlink()
    assert ampsweep(*COMPARE, *TWO).code == 0
    assert len(commands) == 6
    assert {record.status for _, record in find_records(Path("runs")).records} == {"completed"}, "the latest attempts"


def test_a_stop_ends_in_order_with_the_comparison_so_far(ampsweep, commands):
    Path("stop").touch()
    ended = ampsweep(*COMPARE, *TWO)
    assert (ended.code, len(commands), len(workloads())) == (1, 1, 1)
    assert ended.said[-1] == f"interrupted; the same command with --into {Path.cwd()}/runs goes on with it"


def test_a_sweep_of_a_script_has_arms_and_pairs_by_its_parameters(ampsweep, commands):
    Path("s.yaml").write_text(SWEEP)
    assert ampsweep("sweep", "s.yaml", "into=runs", "--count", "2").code == 0
    assert commands == [
        ["/usr/bin/env", sys.executable, "t.py", *bf16, "--n-layer=1", "--seed=3"] for bf16 in ([], ["--bf16"])
    ], "both arms of a point"
    ended = ampsweep("sweep", "s.yaml", "into=runs")
    assert (ended.code, ended.said[0], len(commands)) == (0, "2 of 8 runs finished earlier", 8)
    assert [(found["facts"]["n_layer"], len(found["arms"])) for found in workloads()] == [(1, 2), (2, 2)]
    assert {arm["arm"]: arm["is_baseline"] for arm in workloads()[0]["arms"]} == {"no bf16": True, "bf16": False}
    (first, *_) = [record for _, record in find_records(Path("runs")).records]
    assert (first.config["report"]["metric"], first.config["report"]["goal"]) == ("accuracy", "maximize")


WRONG = (
    ("compare", "fp32: python t.py"),
    ("compare", *TWO),
    ("compare", "--seeds", "0,1", "fp32: python t.py", TWO[1]),
    ("compare", "--seeds", "0,one", *TWO),
    ("compare", "--seeds", "0", TWO[0], TWO[0]),
    ("compare", "--seeds", "0", "--baseline", "tf32", *TWO),
    ("compare", "--seeds", "0", "--metric", "score7", *TWO),
    ("compare", "fp32: python t.py", "bf16: python t.py 'x"),
    ("compare", "fp32: python t.py", "bf16: "),
    ("compare", "fp32: python t.py", "bf16: no-such-program t.py"),
    ("compare", "fp32: python t.py", "A=1 python no_such.py"),
    ("sweep", "s.yaml", "lr=1"),
    ("sweep", "s.yaml", "--arm-key", "precision"),
    ("sweep", "s.yaml", "--seed-key", "n"),
    ("sweep", "s.yaml", "--arm-key", "seed", "--seed-key", "bf16"),
)
WRONG_FILES = {
    "method: grid": "method: bayes",
    "program": "early_terminate: {type: hyperband}\nprogram",
    "bf16": "x",
    "n-layer": "fp16",
    "${args_no": "${no_args_no",
    "t.py": "no_such.py",
}


def test_wrong_input_is_one_sentence_before_anything_runs(ampsweep, commands, golden, tmp_path):
    lines = []

    def refused(*arguments):
        ended = ampsweep(*arguments)
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        return ended.err.removeprefix("error: ").replace(str(tmp_path), "HERE")

    Path("s.yaml").write_text(SWEEP)
    lines += [f"- `{' '.join(arguments)}`\n  {refused(*arguments)}" for arguments in WRONG]
    for old, new in WRONG_FILES.items():
        Path("s.yaml").write_text(SWEEP.replace(old, new))
        lines.append(f"- `{' '.join(new.split())}`\n  {refused('sweep', 's.yaml')}")
    golden("wrong_commands.md", "".join(lines))
    assert (commands, list(Path().rglob("run.json"))) == ([], [])
