"""From records to a comparison: pairs, statistics, conclusion. Pure functions of records, without torch."""

from ampsweep.analysis.comparison import Comparison, WorkloadComparison, compare

__all__ = ["Comparison", "WorkloadComparison", "compare"]
