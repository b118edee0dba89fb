"""Type mismatch: the call that stops a training as its dtypes do not fit, and the casts with which it goes on."""
