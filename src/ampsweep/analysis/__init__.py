"""The way from records to a comparison: pairs, statistics, conclusion. Pure functions of records, without torch."""
