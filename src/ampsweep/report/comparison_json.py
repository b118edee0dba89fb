"""`comparison.json`: the figures of a comparison and the sentences about them, in a fixed order of keys."""

import json
from dataclasses import asdict
from typing import Any, Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.comparison import Comparison, WorkloadComparison
from ampsweep.analysis.judgements import Judgements
from ampsweep.analysis.parity import Parity
from ampsweep.analysis.run_entry import RunEntry
from ampsweep.analysis.seam_comparison import SeamComparison
from ampsweep.analysis.search_comparison import ArmSearch, SearchComparison
from ampsweep.analysis.size_series import SizeSeries, is_multiple
from ampsweep.analysis.statistics import Estimate
from ampsweep.analysis.time_to_loss import TimeToLoss
from ampsweep.analysis.workload_verdict import ArmVerdict, Verdict
from ampsweep.report.rank_tables import lines_of_ranks
from ampsweep.report.sentences import (
    arm_findings,
    batch_limits,
    dtype_steps,
    explaining,
    front,
    pitfalls,
    recommending,
    seams,
    sizes,
)

SCHEMA: Final = 3

Json = dict[str, Any]


def comparison_json(comparison: Comparison) -> str:
    """The comparison as one object of strict JSON (no NaN); a figure that was not measured is null."""
    return json.dumps(_comparison(comparison), indent=1, allow_nan=False) + "\n"


def _comparison(of: Comparison) -> Json:
    return {
        "schema": SCHEMA,
        "baseline": of.baseline,
        "margin_pct": of.margin_pct,
        "goal": asdict(of.goal),
        "workloads": [_workload(one) for one in of.workloads],
        "searches": [_search(one) for one in of.searches],
        "sizes": [_series(one, of) for one in of.series],
        "seams": [_seams(one) for one in of.seams],
        "notes": [explaining.comparison_note(note) for note in of.notes],
        "omissions": [asdict(one) for one in of.file_problems],
    }


def _workload(of: WorkloadComparison) -> Json:
    return {
        "title": of.title,
        "facts": dict(of.facts),
        "arms": [_arm(one) for one in of.arms],
        "ranks": [{"arm": arm, "text": line} for arm, line in lines_of_ranks(of)],
        "verdict": _verdict(of.verdict),
        "conclusion": {
            "sentence": recommending.conclusion(of),
            "arms": [asdict(one) for one in recommending.conclusions(of)],
            "cautions": [explaining.caution(one) for one in of.cautions] if of.verdict.arms else [],
        },
        "runs": [_run(one) for one in of.runs],
    }


def _arm(of: ArmComparison) -> Json:
    return asdict(of) | {
        "limits": [asdict(limit) | {"text": arm_findings.step_limit(limit)} for limit in of.limits],
        "notes": [explaining.arm_note(note) for note in of.notes],
    }


def _verdict(of: Verdict) -> Json:
    baseline = of.recommendation.baseline
    return {
        "recommendation": {
            "arm": of.recommendation.arm,
            "sentence": recommending.recommendation(of),
            "goes_by": _ranking(of),
            "evidence": recommending.evidence(of),
            "standings": [
                {"arm": one.arm, "standing": one.standing, "reason": recommending.standing(one, of)}
                for one in of.recommendation.standings
            ],
            "to_decide": recommending.to_decide(of),
        },
        "arms": [_arm_verdict(one) for one in of.arms],
        "reasons": [
            {
                "kind": one.kind,
                "arm": one.arm,
                "text": explaining.reason(one, baseline),
                "evidence": dict(one.evidence),
            }
            for one in of.reasons
        ],
        "front": None if of.front is None else asdict(of.front) | {"sentence": front.front_line(of.front)},
        "steps": [asdict(one) | {"changes": dtype_steps.changes(one)} for one in of.steps],
        "pitfalls": [
            {"arm": arm, "kind": one.kind, "text": pitfalls.pitfall(one), "evidence": dict(one.figures)}
            for arm, one in of.pitfalls
        ],
    }


def _ranking(of: Verdict) -> Json | None:
    ranked = of.recommendation.ranking
    return None if ranked is None else asdict(ranked) | {"text": recommending.goes_by(of)}


def _arm_verdict(of: ArmVerdict) -> Json:
    return {
        "arm": of.arm,
        "withheld": None if of.too_few_pairs is None else recommending.too_few_pairs(of.too_few_pairs),
        "judgements": _judgements(of.judgements),
        "parities": [_parity(one) for one in of.parities],
        "waterfall": None if of.waterfall is None else asdict(of.waterfall),
        "time_to_loss": None if of.time_to_loss is None else _time_to_loss(of.time_to_loss),
    }


def _judgements(of: Judgements) -> Json:
    return {
        "speed": of.speed,
        "speed_text": arm_findings.speed(of),
        "memory": of.memory,
        "memory_text": arm_findings.memory(of),
        "parity": of.parity,
        "parity_text": arm_findings.parity(of),
        "summary": arm_findings.summary(of),
        "brief": arm_findings.brief(of),
    }


def _parity(of: Parity) -> Json:
    figures = {key: value for key, value in asdict(of).items() if key not in ("is_share", "scale")}
    return figures | {
        "text": arm_findings.parity_grounds(of),
        "settled_by": arm_findings.parity_settled_by(of),
        "short": arm_findings.parity_short(of),
    }


def _time_to_loss(of: TimeToLoss) -> Json:
    figures = {key: value for key, value in asdict(of).items() if key not in ("seconds", "joules")}
    return figures | {"text": arm_findings.time_to_loss(of)}


def _series(of: SizeSeries, comparison: Comparison) -> Json:
    return {
        "key": of.config_key,
        "title": sizes.series_heading(of),
        "facts": dict(of.facts),
        "points": [
            {
                "size": size,
                "multiple_of_8": is_multiple(size) if of.of_tensors else None,
                "workload": comparison.workloads[place].title,
                "arms": [
                    {"arm": arm.arm, "step_ms": arm.step_ms}
                    | {name: _estimate(getattr(arm, name)) for name in ("speedup", "memory_saved_pct")}
                    for arm in comparison.workloads[place].arms
                ],
            }
            for size, place in zip(of.sizes, of.workloads, strict=True)
        ],
        "multiples_of_8": [asdict(one) for one in of.effects],
        "against_first": [asdict(one) for one in of.steps],
        "also_changed": list(of.along),
        "sentences": sizes.series_lines(of),
    }


def _estimate(of: Estimate | None) -> Json | None:
    return None if of is None else asdict(of)


def _run(of: RunEntry) -> Json:
    return asdict(of) | {"not_paired": None if of.not_paired is None else explaining.unpaired(of.not_paired)}


def _search(of: SearchComparison) -> Json:
    return {
        "title": of.title,
        "facts": dict(of.facts),
        "memory_limit_bytes": of.memory_limit_bytes,
        "arms": [_arm_search(one) for one in of.arms],
        "sentence": batch_limits.largest_batches(of),
        "runs": [_run(one) for one in of.runs],
    }


def _arm_search(of: ArmSearch) -> Json:
    told = {
        "statuses": ("status", arm_findings.statuses(of.statuses)),
        "limit": ("why", batch_limits.bound(of)),
        "notes": ("notes", [batch_limits.search_note(note) for note in of.notes]),
    }
    figures = {key: value for key, value in asdict(of).items() if key not in ("refusing", "outcome", "error")}
    return dict(told.get(key, (key, value)) for key, value in figures.items())


def _seams(of: SeamComparison) -> Json:
    return {
        "title": of.title,
        "facts": dict(of.facts),
        "step": of.step,
        "steps": of.steps,
        "margin_pct": of.margin_pct,
        "loss": of.loss,
        "saved_in": list(of.saved_in),
        "resumed_in": list(of.resumed_in),
        "cells": [asdict(one) | {"is_bitwise": one.is_bitwise, "then": seams.position(one)} for one in of.seams],
        "sentence": seams.answer(of),
        "notes": seams.seam_lines(of),
        "runs": [_run(one) for one in of.runs],
    }
