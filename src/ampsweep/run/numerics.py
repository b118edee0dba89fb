"""The numerics of a run in its directory: gone on with by a run that is resumed, and written at its end."""

from contextlib import suppress

from ampsweep.record.files import RecordError
from ampsweep.record.numerics import RunNumerics
from ampsweep.run.request import RunRequest
from ampsweep.training.trainer import Trainer


def load_numerics(request: RunRequest, trainer: Trainer) -> None:
    """Go on with what the processes before have seen of this run; a file that cannot be read is replaced at the end."""
    if trainer.watch is not None:
        with suppress(FileNotFoundError, RecordError):
            trainer.watch.load(RunNumerics.read(request.directory))


def write_numerics(request: RunRequest, trainer: Trainer) -> None:
    """Write what was seen of the run beside its record; on a full disk nothing is written."""
    if request.is_recorded and trainer.watch is not None:
        with suppress(OSError):
            trainer.watch.numerics().write(request.directory)
