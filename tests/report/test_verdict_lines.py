import io
from dataclasses import replace

from rich.console import Console
from synthetic_records import failed, sweep

from ampsweep.analysis.comparison import compare
from ampsweep.report.console import print_comparison
from ampsweep.report.markdown import markdown
from ampsweep.report.sentences.memory_bytes import change
from ampsweep.report.verdict_lines import console_lines, verdict_lines

MIB = 2**20


def memory(**mib):
    return {"peak": {category: MIB * size for category, size in mib.items()}}


def workload():
    losses = [2.41, 2.43, 2.40]
    fp32 = {"memory": memory(parameters=400, activations=600), "peak_mib": 1000.0}
    bf16 = {"memory": memory(parameters=400, activations=320, autocast_weights=40), "peak_mib": 760.0}
    entries = [
        *sweep("fp32", [150.0, 153.0, 147.0], val_loss=losses, **fp32),
        *(failed("tf32", seed, "unsupported", "no TF32 here") for seed in range(3)),
        *sweep("amp_bf16", [100.0, 101.0, 99.0], val_loss=[loss + 0.001 for loss in losses], **bf16),
        *sweep("amp_fp16", [90.0, 91.0], val_loss=losses[:2], **bf16),
        failed("amp_fp16", 2, "diverged", "the scale collapsed to 2.9e-08 at step 41"),
    ]
    (found,) = compare(entries, baseline="fp32", margin_pct=1.0).workloads
    return found


def by_topic(lines):
    return {(line.topic, line.arm): line.text for line in lines}


def test_every_topic_has_a_line_for_each_arm_it_is_known_of():
    lines = by_topic(verdict_lines(workload()))
    assert lines["speed", "amp_bf16"].startswith("1.50x [1.")
    assert lines["memory", "amp_bf16"] == "saves 240 MiB of peak memory (24.0%), n=3"
    assert lines["bytes", "amp_bf16"] == "activations -280 MiB, autocast weights +40.0 MiB"
    assert lines["parity", "amp_bf16"].startswith("val loss equivalent: gap +0.001")
    assert lines["refused", "amp_fp16"] == "the scale collapsed to 2.9e-08 at step 41 in seed 2"
    assert lines["refused", "tf32"] == "unsupported: no TF32 here"
    assert ("speed", "tf32") not in lines


def test_the_console_leaves_out_what_stands_beside_it_already():
    lines = by_topic(console_lines(workload()))
    assert {topic for topic, _ in lines} == {"goes by", "bytes", "parity", "front", "refused"}
    assert ("refused", "tf32") not in lines


def test_a_change_has_its_sign():
    assert (change(MIB), change(-MIB), change(0)) == ("+1.00 MiB", "-1.00 MiB", "0 B")


def test_a_document_begins_with_the_recommendation():
    text = markdown(replace(compare([], baseline="fp32", margin_pct=1.0), workloads=(workload(),)))
    recommendation = text.index("**Train in amp_bf16: against fp32, 1.50x the speed, 24.0% less peak memory")
    parity = text.index("- **parity** amp_bf16: val loss equivalent")
    refused = text.index("- **refused** amp_fp16: the scale collapsed")
    assert recommendation < parity < refused < text.index("| arm |")


def test_the_console_ends_with_the_recommendation():
    stream = io.StringIO()
    print_comparison(
        replace(compare([], baseline="fp32", margin_pct=1.0), workloads=(workload(),)), Console(file=stream, width=400)
    )
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    assert lines[-1].startswith("Train in amp_bf16: ")
    assert lines[-2].startswith("Against fp32, amp_bf16 (n=3): 1.50x [")
    assert any(line.startswith("bytes") and "activations -280 MiB" in line for line in lines)
