"""A diagnosis of eight findings with sentences of every length, and the numerics of a model of many layers."""

import math
from typing import Any

from ampsweep.record.diagnosis import Change, Diagnosis, DoctorFinding, Unexamined
from ampsweep.record.numerics import Magnitudes, RunNumerics, TensorKind
from ampsweep.report.sentences.findings import SENTENCES
from ampsweep.report.sentences.findings.told import Told

LONG_MODULE = "transformer.encoder.layers.11.cross_attention.self_attention.output_projection.lora_adapter.down"

_TOLD = {
    "shown_mismatch": Told(
        headline="aten.addmm gets float32 and bfloat16 in decoder.head, and stops the training",
        evidence=["its weight is bfloat16, as the model's own call of bfloat16() made it", "its input is float32"],
        change="Cast the input where it is made",
        proof="the step then runs",
    ),
    "shown_overflow": Told(
        headline=f"The scores of {LONG_MODULE} exceed float16's largest number, which makes the loss NaN",
        evidence=[
            "the largest score is 113,220 in step 3, float16 ends at 65,504",
            "without autocast the loss is 4.1288 in that step, under autocast NaN; with the scaler off it is NaN, too, "
            "so that the scale has no part in it",
        ],
        change="Keep this module in float32",
        proof="the loss follows float32's over 50 steps within 0.3%, taking the module out again brings the NaN "
        "back, and it costs 1.1% of the time and 2.0% of the memory",
    ),
    "shown_eps": Told(
        headline="The eps of Adam, 1e-08, is zero in float16",
        evidence=["3 of 12 parameters are divided by zero"],
        change="Use a larger eps",
        proof="the loss is still not finite",
    ),
    "shown_sync": Told(
        headline="The host waits for the device 3 times a step",
        evidence=["`.item()` of the loss, at nets.py, line 12", "a step without it takes 61% of the time"],
        change="Read the loss later",
        proof="a step takes 5.02 ms instead of 8.20 ms",
    ),
}


def _tell(of: DoctorFinding) -> Told:
    return _TOLD[of.kind]


def install(patch: Any) -> None:
    """Make the sentences of this module's kinds known while a test runs."""
    for complaint in ("types", "loss", "speed"):
        known = {**SENTENCES.get(complaint, {}), **dict.fromkeys(_TOLD, _tell)}
        patch.setitem(SENTENCES, complaint, known)


def diagnosis() -> Diagnosis:
    """Eight findings, with and without prices, changes and proofs; two of kinds that nobody knows."""
    return Diagnosis(
        arm="amp_fp16",
        model="gpt_tiny",
        data="synthetic_tokens",
        device="cpu",
        device_name="AMD EPYC 9B45",
        run="outputs/fp32_vs_amp/2026-11-21_10-00-00/amp_fp16-gpt_tiny-s0-1f2e3d",
        steps=50,
        seconds=41.3,
        findings=[
            DoctorFinding(
                complaint="types",
                kind="shown_mismatch",
                modules=["decoder.head"],
                operator="aten.addmm",
                place="nets.py, line 41",
                change=Change(code="hidden = hidden.to(self.head.weight.dtype)"),
                proof={"mends": True},
            ),
            DoctorFinding(
                complaint="loss",
                kind="shown_overflow",
                modules=[LONG_MODULE, *(f"transformer.encoder.layers.{index}.attention" for index in range(9))],
                operator="aten.bmm",
                place="attention_with_a_rather_long_name.py, line 1012",
                change=Change(overrides=[f"precision.fp32_modules=[{LONG_MODULE}]", "precision.init_scale=1024"]),
                proof={"mends": True, "cost_ms": 0.1},
            ),
            DoctorFinding(
                complaint="loss",
                kind="shown_eps",
                change=Change(overrides=["optimizer.eps=1e-4"]),
                proof={"mends": False},
            ),
            DoctorFinding(
                complaint="loss",
                kind="<b>unknown</b>_kind & more",
                modules=["<script>alert(1)</script>"],
                evidence={"largest_abs": 1.5e9, "dtype": "float16", "share_pct": 12.5},
            ),
            DoctorFinding(
                complaint="speed",
                kind="shown_sync",
                cost_pct=38.8,
                modules=[""],
                operator="aten._local_scalar_dense",
                place="nets.py, line 12",
                change=Change(code="losses.append(loss.detach())"),
                proof={"mends": True},
            ),
            DoctorFinding(complaint="speed", kind="device_not_filled", cost_pct=21.0, evidence={"step_ms": 4.1}),
            DoctorFinding(
                complaint="memory", kind="weight_copies", cost_pct=12.0, evidence={"copies_bytes": 3 * 2**20}
            ),
            DoctorFinding(
                complaint="speed",
                kind="odd_sizes",
                cost_pct=3.5,
                modules=["decoder.head"],
                change=Change(overrides=["model.vocab_size=50304"]),
            ),
        ],
        unexamined=[Unexamined(complaint="memory", reason="the time was over after 60 s")],
        facts={
            "types/seconds": 0.2,
            "loss/steps": [
                {
                    "step": step,
                    "own": 4 * math.exp(-step / 30) if step < 20 else "nan",
                    "baseline": 4 * math.exp(-step / 25),
                }
                for step in range(1, 51)
            ],
            "numerics/error_growth": [
                {
                    "module": f"transformer.layers.{index // 8}.linear",
                    "operator": "aten.addmm",
                    "error": 1e-4 * 1.05**index * (100 if index > 60 else 1),
                    "explained": 2e-4 * 1.05**index,
                }
                for index in range(96)
            ],
            "numerics/tolerance_pct": 0.4,
            "speed/bound_x": 2.31,
            "speed/step_ms": 8.2,
            "speed/is_compiled": False,
            "memory/peak_bytes": 81 * 2**20,
            "loss/modules": ["a", "b"],
        },
    )


def magnitudes(layer: str, kind: TensorKind, middle: int, *, width: int = 6, num: int = 4096) -> Magnitudes:
    """A tensor whose magnitudes lie around 2**middle."""
    bends = [math.exp(-0.5 * ((place - 3 * width) / (width / 2)) ** 2) for place in range(4 * width)]
    counts = [round(num * bend / sum(bends)) for bend in bends]
    first = middle - 3 * width
    return Magnitudes(
        layer=layer,
        kind=kind,
        dtype="float32",
        num_steps=10,
        num_elements=sum(counts) + 100,
        num_zeros=100,
        max_abs=1.5 * 2.0 ** (first + len(counts) - 1),
        first_exponent=first,
        counts=counts,
        unchanged_pct=2.0 if kind == "update" else None,
    )


def numerics(num_layers: int = 6, *, scale: float | None = None) -> RunNumerics:
    """Those of a model of some blocks, whose gradients become smaller towards its beginning."""
    layers = [
        "embed",
        *(f"blocks.{index}.{part}" for index in range(num_layers) for part in ("norm", "linear")),
        "head",
    ]
    found = [magnitudes(layer, "activation", 2 + place // 4) for place, layer in enumerate(layers)]
    found += [
        magnitudes(layer, "activation_gradient", -18 - (len(layers) - place) // 4) for place, layer in enumerate(layers)
    ]
    for kind, middle in (("gradient", -12), ("weight", -5), ("update", -12)):
        found += [magnitudes(f"{layer}.weight", kind, middle) for layer in layers]
    return RunNumerics(steps=[1, 10, 20], scale=scale, cost_pct=0.4, magnitudes=found)
