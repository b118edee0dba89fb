"""Checks of constructor arguments, shared by data, models and tasks."""


def require_positive(**sizes: int) -> None:
    """Raise a ``ValueError`` naming the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def require_fraction(**fractions: float) -> None:
    """Raise a ``ValueError`` naming the first value outside (0, 1)."""
    for name, fraction in fractions.items():
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"{name} must lie between 0 and 1, got {fraction}")


def require_below_one(**rates: float) -> None:
    """Raise a ``ValueError`` naming the first value outside [0, 1)."""
    for name, rate in rates.items():
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"{name} must be at least 0 and below 1, got {rate}")
