"""The doctor on trainings that are not the suite's: a command whose calls are observed while it runs."""
