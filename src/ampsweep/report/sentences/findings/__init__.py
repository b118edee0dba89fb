"""The sentences of the findings of the doctor, by complaint and kind."""

from collections.abc import Callable
from typing import Final

from ampsweep.complaints import Complaint
from ampsweep.record.diagnosis import DoctorFinding
from ampsweep.report.sentences.findings import loss, memory, numerics, speed, types
from ampsweep.report.sentences.findings.told import Told

Tell = Callable[[DoctorFinding], Told]

SENTENCES: Final[dict[Complaint, dict[str, Tell]]] = {
    "types": types.SENTENCES,
    "loss": loss.SENTENCES,
    "numerics": numerics.SENTENCES,
    "memory": memory.SENTENCES,
    "speed": speed.SENTENCES,
}


def told(finding: DoctorFinding) -> Told:
    """The sentences of a finding; one of a kind that this version does not know tells its facts."""
    tell = SENTENCES.get(finding.complaint, {}).get(finding.kind)
    if tell is not None:
        return tell(finding)
    return Told(
        headline=finding.kind.replace("_", " "),
        evidence=[f"{name}: {value}" for name, value in finding.evidence.items()],
    )
