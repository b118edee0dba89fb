"""A run of before, as its directory tells it: its command line, how it ended, and where it can be gone on from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config
from ampsweep.record import FILE_NAME, RecordError, RunRecord, read_history
from ampsweep.run.directories import has_checkpoint

_OVERRIDES: Final = Path(".hydra") / "overrides.yaml"
_HYDRA: Final = Path(".hydra") / "hydra.yaml"
_SEARCH_PATH: Final = "hydra.searchpath="


def is_run_directory(argument: str) -> bool:
    """Tell whether an argument of a command line names the directory of a run, and is no override."""
    return (Path(argument).expanduser() / FILE_NAME).exists()


@dataclass(frozen=True)
class RecordedRun:
    """A run that was measured, in its directory."""

    directory: Path
    record: RunRecord
    overrides: tuple[str, ...]
    """Those of its command line or, in a sweep, of its point."""

    @staticmethod
    def read(directory: Path) -> "RecordedRun":
        """Read the run in `directory`.

        Raises:
            UserError: there is none, or its command line is not there.
        """
        directory = directory.expanduser().resolve()
        try:
            record = RunRecord.read(directory)
            given = yaml.safe_load((directory / _OVERRIDES).read_text(encoding="utf-8"))
            settings = yaml.safe_load((directory / _HYDRA).read_text(encoding="utf-8"))
        except (RecordError, FileNotFoundError) as error:
            raise UserError(f"{directory} is not the directory of a run: {error}") from error
        if record.kind != "measured":
            raise UserError(f"{directory} holds a prediction, and no run")
        of_hydra = settings["hydra"]["overrides"]["hydra"]
        found = [one for one in of_hydra if str(one).startswith(_SEARCH_PATH)]
        return RecordedRun(directory, record, tuple(map(str, (*given, *found))))

    def require_same(self, config: Config) -> None:
        """Make sure that the command line still means what the run has done.

        Raises:
            UserError: it means something else, since files of the configuration have changed.
        """
        if config_hash(config) != self.record.config_hash:
            raise UserError(
                f"{self.directory}: its command line means another training by now; give the overrides in place of it"
            )

    @property
    def has_checkpoint(self) -> bool:
        """Tell whether it has left a checkpoint."""
        return has_checkpoint(self.directory)

    @property
    def went_wrong(self) -> bool:
        """Tell whether its numbers, or an error, have ended it."""
        return self.record.status in ("diverged", "failed")

    @property
    def last_step(self) -> int:
        """The last step that it has logged, or would have logged next."""
        rows = read_history(self.directory)
        last = int(rows[-1]["step"]) if rows else 0
        steps = self.record.identity.steps or last
        log_every = int(self.record.config["trainer"]["log_every"])
        return min(steps, last + log_every) if self.went_wrong else last
