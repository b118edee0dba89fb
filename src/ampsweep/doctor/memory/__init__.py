"""The complaint of memory: what keeps the peak of a training from shrinking in its precision."""
