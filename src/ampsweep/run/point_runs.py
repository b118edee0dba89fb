"""The runs of a sweep by the points that they are of, while more of them are trained."""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ampsweep.config.identity import config_hash
from ampsweep.config.schema import Config
from ampsweep.record import RecordError, RunRecord, find_records
from ampsweep.record.outcome import OUTCOMES


class PointRuns:
    """Finds runs below a sweep's directory by the hash of their config, whatever their directories are called.

    Who asks once has the records searched. Who asks again, as for each point of a sweep, has each of them read once and
    kept in mind by its hash; after that only those of the point, and directories that have been added since, are read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._was_asked = False
        self._looked_into: set[str] = set()
        """Names of the directories whose runs are known."""
        self._places: dict[str, list[Path]] = defaultdict(list)
        """Config hash -> run directories."""

    def finished(self, config: Config) -> RunRecord | None:
        """The record of the point, if it has an outcome; records that cannot be read are passed over."""
        wanted = config_hash(config)
        ended = (record for record in self._found(wanted) if record.status in OUTCOMES)
        return next((record for record in ended if record.config_hash == wanted), None)

    def _found(self, wanted: str) -> Iterator[RunRecord]:
        if not self._was_asked:
            self._was_asked = True
            yield from (record for _, record in find_records(self._directory, mentioning=wanted).records)
            return
        self._look_into_new()
        for place in self._places[wanted]:
            with suppress(RecordError, FileNotFoundError):
                yield RunRecord.read(place)

    def _look_into_new(self) -> None:
        """Read what has been added; a directory without a record, whose run is yet to begin, is looked into again."""
        with os.scandir(self._directory) as entries:
            added = [one.name for one in entries if one.name not in self._looked_into and one.is_dir()]
        for name in sorted(added):
            for place, record in find_records(self._directory / name).records:
                self._looked_into.add(name)
                if place not in self._places[record.config_hash]:
                    self._places[record.config_hash].append(place)
