"""Why nothing is concluded about an arm with too few completed pairs."""

from typing import Final

from ampsweep.analysis.arms import ArmComparison
from ampsweep.analysis.statistics import MIN_PAIRS
from ampsweep.text import plural

_FAILURES: Final = ("unsupported", "oom", "diverged", "interrupted", "failed", "disproved", "cut short")


def why_withheld(arm: ArmComparison, baseline: ArmComparison) -> str | None:
    """What is missing, with its causes; None for an arm that has at least three pairs completed in both arms."""
    if arm.num_completed_pairs >= MIN_PAIRS:
        return None
    if list(arm.statuses) == ["unsupported"]:
        return "unsupported on this device"
    done = f"{arm.num_completed_pairs} of {plural(arm.num_expected_pairs, 'pair')} completed"
    causes = _causes(arm, baseline)
    why = f"{done} ({', '.join(causes)})" if causes else done
    return f"{why} and {MIN_PAIRS} are needed" if arm.num_expected_pairs < MIN_PAIRS else why


def _causes(arm: ArmComparison, baseline: ArmComparison) -> list[str]:
    failures = [f"{count} {status}" for status, count in arm.statuses.items() if status in _FAILURES]
    failures += [
        f"{count} {baseline.arm} {status}" for status, count in baseline.statuses.items() if status in _FAILURES
    ]
    if failures:
        return failures
    if arm.num_without_partner:
        return [f"{arm.num_without_partner} without a {baseline.arm} run to pair with"]
    missing = arm.num_expected_pairs - arm.num_completed_pairs
    return [f"{missing} not run"] if missing > 0 else []
