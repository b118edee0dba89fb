"""Reports of a comparison: console, Markdown, HTML, JSON. Columns and panels are each defined once."""

from ampsweep.report.console import print_comparison
from ampsweep.report.files import write_comparison
from ampsweep.report.run_summary import print_run_summary

__all__ = ["print_comparison", "print_run_summary", "write_comparison"]
