"""The diagnosis of a command that has been recorded and observed."""

import os
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import torch

from ampsweep.analysis.runs import Run
from ampsweep.analysis.step_limits import limits_text, step_limits
from ampsweep.config.modes import step_dtypes
from ampsweep.config.schema import PrecisionConfig
from ampsweep.doctor.diagnosis import Diagnosis, DoctorFinding, Unexamined, merged
from ampsweep.doctor.loss.findings import LossFinding, WrongScale
from ampsweep.doctor.script import findings as kinds
from ampsweep.doctor.script import scaler_edits
from ampsweep.doctor.script.examining_watcher import ScriptObservations
from ampsweep.integrations.script.launcher import EndedCommand
from ampsweep.records import RunRecord, read_history

WATCHER: Final = "ampsweep.doctor.script.examining_watcher:ExaminingWatcher"
_MIN_SKIPS: Final = 8  # skipped steps that are no more the scaler's ordinary search for its scale
_WIDE: Final = (torch.float32, torch.float64)
_MIN_STEPS: Final = 3  # observed steps in which a line does what is its habit
_FIGURES: Final = ("perf/step_ms", "perf/launch_ms", "perf/data_wait_ms", "device/utilization_pct")


def diagnose(
    command: Sequence[str], run: EndedCommand, seen: Sequence[ScriptObservations], seconds: float
) -> Diagnosis:
    first = seen[0]
    findings = list({finding.sentence: finding for own in seen for finding in own.findings}.values())
    place = None if run.directory is None else os.fspath(run.directory)
    diagnosis = Diagnosis(
        arm="", model="a script", data=" ".join(command), device="", device_name="", run=place, seconds=seconds
    )
    unexamined, diagnosis.facts["loss/steps_in_all"] = diagnosis.unexamined, first.num_steps
    if first.error is not None and not any(finding.complaint == "types" for finding in findings):
        unexamined.append(Unexamined(complaint="types", reason=f"the script ended with {first.error}"))
    if first.failure is not None:
        unexamined.append(Unexamined(complaint="loss", reason=f"observing failed with {first.failure}"))
    if run.directory is None:
        why = "it ended before its first optimizer step" if first.error else run.why_none or "there is no record of it"
        is_found = any(isinstance(finding, LossFinding) for finding in findings)
        unexamined.append(Unexamined(complaint="loss", reason=why, is_begun=is_found))
        unexamined.append(Unexamined(complaint="speed", reason=why))
    else:
        recorded = Run(run.directory, run.records[0])
        record, identity = recorded.record, recorded.record.identity
        if not any(isinstance(finding, LossFinding) for finding in findings):
            findings += _of_scaler(recorded, first)
        findings += _of_precision(recorded, first)
        reads = {place: int(median(counts)) for place, counts in first.reads.items() if len(counts) >= _MIN_STEPS}
        findings += (kinds.HostReads(num_reads=count, place=place) for place, count in reads.items())
        if (limits := step_limits([recorded])) and not reads:  # which limit a step by themselves
            findings.append(kinds.LimitedStep(limits=limits_text(limits)))
        if "perf/step_ms" not in record.summary:
            why = record.absent.get("perf/step_ms", "no step was timed, of which a script needs about fifty")
            unexamined.append(Unexamined(complaint="speed", reason=why))
        diagnosis.arm, diagnosis.model = record.arm, identity.model or diagnosis.model
        diagnosis.device, diagnosis.device_name = identity.device, identity.device_name or identity.device
        diagnosis.facts |= _facts(record)
    diagnosis.findings = merged(findings)
    return diagnosis


def _of_scaler(run: Run, seen: ScriptObservations) -> Iterator[DoctorFinding]:
    """Skipped steps beyond a scaler's usual search."""
    steps, figures = run.record.identity.steps or 0, run.record.summary
    scale, skipped = figures.get("amp/scale"), int(figures.get("amp/skipped_steps", 0))
    if scale is None or skipped < _MIN_SKIPS:
        return
    rows = [row for row in read_history(run.directory) if "amp/skipped_steps" in row]
    before = next((row for row in reversed(rows) if row["step"] <= steps - _MIN_SKIPS), {})
    since, steps_since = skipped - int(before.get("amp/skipped_steps", 0)), steps - int(before.get("step", 0))
    signs = kinds.ScriptSigns.at("skipped_steps", steps, num_skipped=skipped, scale=scale)
    if since == 0 and seen.init_scale is not None:
        yield WrongScale(signs=signs, init_scale=seen.init_scale)
    elif 2 * since >= steps_since and (scale < 1.0 or since == steps_since) and seen.skip_origin is not None:
        yield kinds.of_origin(seen.skip_origin, signs)


def _of_precision(run: Run, seen: ScriptObservations) -> Iterator[DoctorFinding]:
    """What the traced step disproves, with the line of products in float32 where half precision was asked for."""
    given, flops = run.record.config.get("precision"), run.record.proof.flops or {}
    half = sum(count for dtype, count in flops.items() if dtype in ("float16", "bfloat16"))
    claim, facts, is_half = "a GradScaler scales, as for float16", list(run.contradictions), True
    if given is not None:
        claimed = PrecisionConfig(**given)
        claim, is_half = f"{claimed.mode} was asked for", step_dtypes(claimed).compute in ("float16", "bfloat16")
    elif seen.init_scale is not None and flops and not half:
        facts = ["none of the step's matmul and convolution operations ran in half precision"]
    devices, wide = {of.device for of in seen.products}, {of: n for of, n in seen.products.items() if of.dtype in _WIDE}
    if wide and seen.autocasts and not devices & seen.autocasts.keys():
        (asked, at), device = next(iter(seen.autocasts.items())), min(devices)
        change = kinds.change_of(scaler_edits.for_device, at, asked, device)
        yield kinds.AutocastElsewhere(asked=asked, device=device, place=at, change=change)
        return
    if facts and is_half and 2 * half <= sum(flops.values()) and wide:
        first, *facts = facts
        most = max(wide, key=wide.__getitem__)
        fact = f"{first}; autocast is {'on' if most.is_autocast else 'off'} where most ran in float32"
        modules = [most.module] if most.module is not None else []
        yield kinds.Disproof(claim=claim, fact=fact, place=most.place, modules=modules)
    yield from (kinds.Disproof(claim=claim, fact=fact) for fact in facts)


def _facts(record: RunRecord) -> dict[str, object]:
    found = {f"speed/{key.partition('/')[2]}": record.summary[key] for key in _FIGURES if key in record.summary}
    peak, flops = record.memory.peak or {}, record.proof.flops or {}
    return {
        **found,
        **{f"memory/{category}_bytes": size for category, size in peak.items()},
        **{f"types/{dtype}_pct": 100 * count / sum(flops.values()) for dtype, count in flops.items() if count},
        **{f"types/float32_{kind}": how for kind, how in (record.proof.fp32_arithmetic or {}).items()},
    }
