"""A diagnosis with sentences of every length, and the numerics of a model of many layers."""

import math
from dataclasses import dataclass

from ampsweep.doctor.diagnosis import Change, Diagnosis, DoctorFinding, TriedChange, Unexamined
from ampsweep.records.numerics import Magnitudes, RunNumerics

LONG_MODULE = "transformer.encoder.layers.11.cross_attention.self_attention.output_projection.lora_adapter.down"


@dataclass(frozen=True, kw_only=True)
class ShownProof(TriedChange):
    sentence: str = ""


class ShownMismatch(DoctorFinding):
    complaint = "types"
    template = "aten.addmm gets float32 and bfloat16 in decoder.head, and stops the training"
    seen = ("its weight is bfloat16, as the model's own call of bfloat16() made it", "its input is float32")
    remedy = "Cast the input where it is made"


class ShownOverflow(DoctorFinding):
    complaint = "loss"
    template = f"The scores of {LONG_MODULE} exceed float16's largest number, which makes the loss NaN"
    seen = ("the largest score is 113,220 in step 3, float16 ends at 65,504",)
    remedy = "Keep this module in float32"


class ShownMarkup(DoctorFinding):
    complaint = "loss"
    template = "<b>unknown</b> kind & more"


class ShownSync(DoctorFinding):
    complaint = "speed"
    template = "The host waits for the device 3 times a step"
    seen = ("`.item()` of the loss, at nets.py, line 12", "a step without it takes 61% of the time")
    remedy = "Read the loss later"


class ShownCopies(DoctorFinding):
    complaint = "memory"
    template = "There are copies"


def diagnosis():
    """Five findings, with and without prices, changes and proofs; from step 5 on the loss is NaN."""
    findings = [
        ShownMismatch(
            modules=["decoder.head"],
            operator="aten.addmm",
            place="nets.py, line 41",
            change=Change(code="hidden = hidden.to(self.head.weight.dtype)"),
            proof=ShownProof(mends=True, sentence="the step then runs"),
        ),
        ShownOverflow(
            modules=[LONG_MODULE, *(f"transformer.encoder.layers.{index}.attention" for index in range(9))],
            operator="aten.bmm",
            place="attention_with_a_rather_long_name.py, line 1012",
            change=Change(overrides=[f"precision.fp32_modules=[{LONG_MODULE}]", "precision.init_scale=1024"]),
            proof=ShownProof(mends=False, sentence="the loss is still not finite"),
        ),
        ShownMarkup(modules=["<script>alert(1)</script>"]),
        ShownSync(cost_pct=38.8, modules=[""], change=Change(code="losses.append(loss.detach())")),
        ShownCopies(cost_pct=12.0),
    ]
    losses = [{"step": step, "own": 1 / step if step < 5 else math.nan, "baseline": 2 / step} for step in range(1, 9)]
    facts = {"loss/steps": losses, "types/seconds": 0.2, "numerics/tolerance_pct": 0.4}
    facts |= {"speed/bound_x": 2.31, "speed/step_ms": 8.2, "speed/is_compiled": False, "memory/peak_bytes": 81 * 2**20}
    of = {"model": "gpt_tiny", "data": "synthetic_tokens", "device": "cpu", "device_name": "AMD EPYC 9B45"}
    return Diagnosis(
        **of,
        arm="amp_fp16",
        steps=50,
        seconds=41.3,
        run="outputs/fp32_vs_amp/2026-11-21_10-00-00/amp_fp16-gpt_tiny-s0-1f2e3d",
        findings=findings,
        unexamined=[Unexamined(complaint="memory", reason="the time was over after 60 s")],
        facts=facts | {"loss/modules": ["a", "b"]},
    )


def magnitudes(layer, kind, middle, *, width=6, num=4096):
    """A tensor whose magnitudes are around 2**middle."""
    bends = [math.exp(-0.5 * ((place - 3 * width) / (width / 2)) ** 2) for place in range(4 * width)]
    counts = [round(num * bend / sum(bends)) for bend in bends]
    first = middle - 3 * width
    of = {"layer": layer, "kind": kind, "unchanged_pct": 2.0 if kind == "update" else None}
    of |= {"dtype": "float32", "num_steps": 10, "num_zeros": 100, "num_elements": sum(counts) + 100}
    return Magnitudes(**of, first_exponent=first, counts=counts, max_abs=1.5 * 2.0 ** (first + len(counts) - 1))


def numerics(num_layers=6, *, scale=None):
    """The numerics of a model whose gradients become smaller towards its beginning."""
    blocks = [f"blocks.{index}.{part}" for index in range(num_layers) for part in ("norm", "linear")]
    layers = ["embed", *blocks, "head"]
    found = [magnitudes(layer, "activation", 2 + place // 4) for place, layer in enumerate(layers)]
    for place, layer in enumerate(layers):
        found.append(magnitudes(layer, "activation_gradient", -18 - (len(layers) - place) // 4))
    for kind, middle in (("gradient", -12), ("weight", -5), ("update", -12)):
        found += [magnitudes(f"{layer}.weight", kind, middle) for layer in layers]
    return RunNumerics(steps=[1, 10, 20], scale=scale, cost_pct=0.4, magnitudes=found)
