"""The comparison of a multirun while its runs go on."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ampsweep.config.schema import Config

if TYPE_CHECKING:
    from ampsweep.record import RunRecord
    from ampsweep.report.document import Document

_TIME_SHARE: Final = 20


class LiveComparison:
    """The files of a comparison, rewritten while its multirun goes on.

    Written between two runs, when nothing is measured, and only when it has cost less than a twentieth of the time so
    far: long sweeps keep an open page fresh, short ones are not slowed.

    Args:
        directory: the multirun's directory.
        config: the config of any of its runs.
        show: called with the comparison and its page whenever they were updated.
    """

    def __init__(self, directory: Path, config: Config, show: Callable[["Document", Path], None]) -> None:
        self._directory, self._report, self._show = directory, config.report, show
        self._began, self._spent = time.monotonic(), 0.0
        self.document: Document | None = None
        self.records: Sequence[tuple[Path, RunRecord]] = []
        """The data that the files were last made from."""
        self.unwritten: str | None = None
        """The reason why the files could not be written the last time."""

    def rewrite(self) -> None:
        """Update the files, if it is time to."""
        if self._spent * _TIME_SHARE < time.monotonic() - self._began:
            with suppress(MemoryError):  # the runs go on; at their end it is told
                comparison = self.write()
                if self.unwritten is None:
                    self._show(comparison, self._directory / "comparison.html")

    def write(self) -> "Document":
        """Update the files, where there is room; return the comparison, with paths relative to them.

        Raises:
            UserError: there are no records yet.
        """
        # Only here: the statistics take a fifth of a second to import, which no training should wait for.
        from ampsweep.report.compare import compare_directories
        from ampsweep.report.comparison_document import comparison_document, write_comparison

        began = time.monotonic()
        compared = compare_directories([self._directory], **vars(self._report))
        self.records = compared.records
        self.document = comparison_document(compared, self._directory)
        try:
            write_comparison(self.document, self._directory)
            self.unwritten = None
        except OSError as error:  # which is no fault of the runs
            self.unwritten = f"{error.filename}: {error.strerror}"
        self._spent += time.monotonic() - began
        return self.document
