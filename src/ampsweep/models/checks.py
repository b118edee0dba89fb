"""Checks that every model's constructor makes of its sizes."""


def require_positive(**sizes: int) -> None:
    """Refuse a size below 1 with a ``ValueError`` that names it."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
