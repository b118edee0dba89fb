"""The doctor: why a training goes wrong in low precision, or gains nothing, found out by taking its steps again."""
