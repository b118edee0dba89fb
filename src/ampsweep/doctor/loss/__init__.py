"""The complaint that a loss is inf or NaN, or worse than in float32: the fault, its cause, the smallest change."""
