"""The sentences of findings, each beside its kind (`golden/findings.md`)."""

from dataclasses import replace

from synthetic_records import document

from ampsweep.analysis import comparison, pairing, reasons, run_findings
from ampsweep.analysis.candidates import Diverged
from ampsweep.analysis.float8_layers import float8_summary
from ampsweep.analysis.pairing import Difference, NearestRunDiffers, NoBaselineRun
from ampsweep.analysis.search_comparison import DifferentAnswers, LimitedThroughput, UnvouchedBatch
from ampsweep.analysis.step_limits import IdleDevice, SmallPeak, SmallStep, WaitForData
from ampsweep.record.sections import Float8Layer, Float8Proof, KeptLayer

MEASURED = SmallStep(step_ms=0.76, launch_ms=0.74, num_operators=95)
WAITING = WaitForData(wait_ms=30.0, step_ms=100.0)
LIMITS = (
    SmallStep(num_operators=430, step_ms=6.1, us_per_operator=14.19, min_us_per_operator=50.0),
    MEASURED,
    replace(MEASURED, num_operators=None),
    WAITING,
    WaitForData(wait_ms=130.0, step_ms=100.0),
    IdleDevice(idle_pct=40.0),
)


def file_problem(name):
    found = comparison.FileProblem(path="a/x", name=name, reason="is odd")
    return f"{found.sentence}: {found.consequence}"


def test_findings(golden):
    differences = tuple(Difference(key, there="1", here="2") for key in ("lr", "steps", "optimizer.weight_decay"))
    of, arm = {"baseline": "fp32"}, {"arm": "amp_bf16"}
    proof = Float8Proof(
        recipe="rowwise",
        converted=[Float8Layer(name="body", in_features=32, out_features=64, flops={"float8_e4m3fn": 65536}, casts=2)],
        kept=[KeptLayer(name="stem", kind="Conv2d", why="no_linear"), KeptLayer(name="head", kind="L", why="output")],
    )
    assert float8_summary(None) is float8_summary(Float8Proof(recipe="rowwise")) is None
    in_float8 = [proof, proof | Float8Proof(emulated="cpu has none"), replace(proof, kept=None)]
    text = document(
        runs=[
            run_findings.NotCompleted(seeds=(2,), status="diverged", cause="nan"),
            run_findings.NotCompleted(seeds=(0, 1), status="oom"),
            run_findings.Contaminated(seeds=(2,), cause="the GPU was hot"),
            run_findings.NotPaired(seeds=(0,), reason=NoBaselineRun(**of)),
            run_findings.Leaks(seeds=(0,), cause="3.00 MiB"),
            run_findings.Repeats(seed=0, num_runs=2),
            run_findings.GraphBreaks(seeds=(0, 1), num_breaks=2, cause="nets.py, line 8: a print"),
            run_findings.Recompiled(seeds=(0,), cause="a size"),
            *(run_findings.InFloat8(seeds=(0,), layers=float8_summary(one)) for one in in_float8),
        ],
        unpaired=[
            NoBaselineRun(**of, seed=3),
            pairing.BaselineWithoutFigures(**of, outcome="oom"),
            NearestRunDiffers(**of, differences=differences[:1], num_differences=1),
            NearestRunDiffers(**of, differences=differences, num_differences=5),
            NearestRunDiffers(**of, differences=(), num_differences=0),
        ],
        reasons=[
            reasons.LittleArithmetic(arm=None, **of, mfu_pct=7.0),
            reasons.OddSizes(arm=None, sizes={"model.vocab_size": 50257, "data.batch_size": 3}),
            reasons.Float32Arithmetic(**arm, share_pct=30.0),
            reasons.SkippedSteps(**arm, skipped_steps=20, steps=200),
            reasons.CastCache(**arm, autocast_weights_bytes=30, activations_saved_bytes=15),
            reasons.FewActivations(**arm, **of, activations_bytes=10, peak_bytes=100),
        ],
        limits_of_the_baseline=dict(enumerate(limit.of_baseline for limit in LIMITS)),
        comparison=[
            SmallPeak(peak_bytes=63.0 * 2**20),
            comparison.SeveralDevices(num_runs_of={"a CPU": 1, "a GPU": 3}),
            comparison.SeveralMachines(num_runs_of={"node1 cuda:0": 3, "node2 cuda:0": 1}),
            comparison.MixedDevices(num_runs_of={"a GPU and an older GPU": 1}),
            comparison.SeveralSources(num_runs_of={"0.1+ab": 1, "0.1+cd": 2}),
            comparison.OtherMargin(margin_pct=5.0, recorded_margin_pct=1.0),
            comparison.ContaminationUnknown(num_runs=6, cause="nothing tells"),
        ],
        files={name: file_problem(name) for name in ("not readable", "no history", "damaged history", "not finite")},
        refusals=[Diverged(cause="", seeds=(0, 1))],
        searches=[
            LimitedThroughput(limits=(WAITING,)),
            DifferentAnswers(batch_sizes=(4, 6)),
            UnvouchedBatch(operators=("mine.a", "mine.b")),
        ],
    )
    golden("findings.md", text)
