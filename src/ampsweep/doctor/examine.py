"""The examinations of a training, one per complaint."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ampsweep.config.modes import step_dtypes
from ampsweep.config.schema import COMPLAINTS, Complaint
from ampsweep.doctor.diagnosis import DoctorFinding, Unexamined
from ampsweep.doctor.examined_training import ExaminedTraining, NotExaminedError
from ampsweep.doctor.loss.examine import examine_loss
from ampsweep.doctor.memory.examine import examine_memory
from ampsweep.doctor.replay import OutOfTimeError
from ampsweep.doctor.side_by_side.examine import examine_numerics
from ampsweep.doctor.speed.examine import examine_speed
from ampsweep.doctor.types.examine import examine_types
from ampsweep.precision.precision import why_emulated
from ampsweep.text import one_line

EXAMINATIONS: Final[dict[Complaint, Callable[[ExaminedTraining], Iterable[DoctorFinding]]]] = {
    "types": examine_types,
    "loss": examine_loss,
    "numerics": examine_numerics,
    "memory": examine_memory,
    "speed": examine_speed,
}

_OF_THE_DEVICE: Final = ("memory", "speed")  # complaints for which an emulated mode says nothing about the mode itself


def examine(
    examined: ExaminedTraining,
    complaints: Sequence[Complaint] = COMPLAINTS,
    on_start: Callable[[str], None] = lambda _: None,
) -> tuple[list[DoctorFinding], list[Unexamined]]:
    """Examine a training for some complaints in turn; `on_start` gets each complaint as its examination starts. One
    that is cut off by the deadline or an error keeps what it has found until then."""
    findings: list[DoctorFinding] = []
    unexamined: list[Unexamined] = []
    out_of_time = f"time ran out (doctor.max_seconds={examined.config.doctor.max_seconds:g})"
    precision = examined.config.precision
    emulated, compute = why_emulated(precision, examined.device), step_dtypes(precision).compute
    for complaint in complaints:
        if examined.seconds_left <= 0:
            unexamined.append(Unexamined(complaint=complaint, reason=out_of_time))
            continue
        on_start(complaint)
        began_s, num_before, reason = time.monotonic(), len(findings), ""
        try:
            if complaint in _OF_THE_DEVICE and emulated is not None:
                raise NotExaminedError(f"the mode is emulated on this device: {emulated}")
            if complaint == "numerics" and compute.startswith("float8_"):
                raise NotExaminedError(f"operators are judged by {precision.dtype}, and the layers round to {compute}")
            if complaint != "types" and (stopped := examined.own_steps.error) is not None:
                raise NotExaminedError(f"its steps end with an error ({type(stopped).__name__})")
            for finding in EXAMINATIONS[complaint](examined):
                findings.append(finding)
        except NotExaminedError as error:
            reason = str(error)
        except OutOfTimeError:
            pass
        except Exception as error:  # noqa: BLE001  the user's own code may raise anything; the others are examined
            reason = f"it ended with {one_line(error)}"
        is_cut = examined.seconds_left < 0
        if reason or is_cut:
            is_begun = is_cut or len(findings) > num_before
            unexamined.append(Unexamined(complaint=complaint, reason=reason or out_of_time, is_begun=is_begun))
        examined.facts[f"{complaint}/seconds"] = time.monotonic() - began_s
    return findings, unexamined
