"""A checkpoint loses nothing in a crash and refuses what is not one."""
