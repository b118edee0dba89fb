"""Checks that constructors make of their sizes and files."""

from pathlib import Path


def require_positive(**sizes: int) -> None:
    """Refuse a size below 1 with a ``ValueError`` that names it."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def require_fraction(**fractions: float) -> None:
    """Refuse what does not lie strictly between 0 and 1 with a ``ValueError`` that names it."""
    for name, fraction in fractions.items():
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"{name} must lie between 0 and 1, got {fraction}")


def require_batch(batch_size: int, num_items: int) -> None:
    """Refuse a training set that is smaller than one batch."""
    if batch_size > num_items:
        raise ValueError(f"batch_size is {batch_size}, but there are only {num_items} training items")


def readable_file(path: str) -> Path:
    """The path of a file with content; one that is missing, a directory, unreadable or empty is a ``ValueError``."""
    file = Path(path).expanduser()
    try:
        with file.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise ValueError(f"data file {path} cannot be read: {error.strerror}") from error
    if empty:
        raise ValueError(f"data file {path} is empty")
    return file
