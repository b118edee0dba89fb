"""Clauses of the analysis as sentences of the page."""

from collections.abc import Iterable

from ampsweep.report.markup import Markup, name


def sentence(clause: str, arms: Iterable[str]) -> Markup:
    """A clause with a capital letter and a stop; the name of an arm stays as it is."""
    begins_with_arm = any(clause.startswith(arm) for arm in arms)
    return name(f"{clause if begins_with_arm else clause[:1].upper() + clause[1:]}.")
