"""`ampsweep sweep FILE`: a sweep for W&B, run without a server, leaves what `train.py -m` leaves."""

import pytest
from command_line import all_runs, only_sweep

from ampsweep.commands.main import main

SWEEP = """
name: small
program: train.py
method: grid
parameters:
  name: {value: small}
  seed: {value: 0}
  model: {value: mlp_small}
  precision: {values: [fp32, amp_bf16]}
  trainer.steps: {value: 4}
  trainer.log_every: {value: 2}
  tracking: {value: disabled}
"""


@pytest.fixture
def sweep(tmp_path, capfd):
    """`ampsweep sweep` of the file above, or of ``text``, with ``arguments``: exit code and what it said."""

    def sweep(*arguments, text=SWEEP):
        (tmp_path / "small.yaml").write_text(text)
        capfd.readouterr()
        code = main(["sweep", "small.yaml", *arguments])
        return code, *capfd.readouterr()

    return sweep


@pytest.mark.slow
def test_every_point_is_a_run_of_one_extensible_multirun(sweep):
    code, out, _ = sweep("--count", "1")
    assert code == 0
    assert [run.record.arm for run in all_runs()] == ["fp32"]
    (first,) = all_runs()
    directory, written = only_sweep(), (first.directory / "run.json").read_bytes()

    code, out, _ = sweep(f"into={directory}")
    assert code == 0
    assert [run.record.arm for run in all_runs()] == ["fp32", "amp_bf16"]
    assert (first.directory / "run.json").read_bytes() == written, "it was finished"
    assert {run.record.identity.experiment for run in all_runs()} == {"small"}
    assert [[row["step"] for row in run.history] for run in all_runs()] == [[2, 4], [2, 4]]
    assert "amp_bf16" in out
    assert (directory / "comparison.html").is_file()


def test_wrong_input_costs_a_sentence_and_starts_nothing(sweep, tmp_path):
    unknown = SWEEP.replace("mlp_small", "mlp_smal")
    code, out, err = sweep(text=unknown)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: small.yaml: model=mlp_smal: no such option; allowed are ")
    assert sweep("--count", "0")[0] == 2
    assert sweep("seed=0,1")[2] == "error: small.yaml: seed=0,1 names several values for one point\n"
    assert not (tmp_path / "outputs").exists()
