"""Checks of constructor arguments of data, models and tasks; each raises ValueError with the first that is wrong."""


def require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def require_below_one(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"{name} must be at least 0 and below 1, got {rate}")
