"""A comparison on a W&B server: a workspace with the live panels of its runs, and a report with the verdict."""
