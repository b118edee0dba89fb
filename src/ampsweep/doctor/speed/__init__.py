"""The complaint that a training gains little time: what its step waits for, and what precision does not shorten."""
