"""Host time added up over many short stretches."""

from time import perf_counter


class Stopwatch:
    """Runs inside `with` and stands still outside; costs two readings of the clock."""

    __slots__ = ("_began", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        """Time it ran since it was made or last reset."""
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._began

    def reset(self) -> None:
        """Set it to zero."""
        self.seconds = 0.0
