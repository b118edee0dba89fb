"""The facts of a document by which a page's reader hides what is not of interest."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ampsweep.report.document import Document, Section, blocks_of
from ampsweep.report.tables import Scalar, scalar_text

_LABELS: Final = {"model": "Model", "model_size": "Size", "batch_size": "Batch", "seq_len": "Sequence", "data": "Data"}
"""Labels of filters, the first ones first."""


@dataclass(frozen=True)
class Filters:
    """The choices of a reader."""

    choices: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Key, label and values of each filter; the last one is of seeds."""

    @classmethod
    def of(cls, document: Document) -> "Filters":
        """The filters by facts that vary, without any that only repeats an earlier one."""
        facts = [one.facts for one in blocks_of(document.sections) if isinstance(one, Section) and one.facts]
        found = [
            (key, _LABELS.get(key, key), {scalar_text(one[key]) for one in facts if key in one})
            for key in _varied(facts)
        ]
        found.append(("seed", "Seed", {str(seed) for seed in document.seeds}))
        return cls(tuple((key, label, tuple(sorted(values, key=_numbers_first))) for key, label, values in found))

    def read_by_script(self, facts: Mapping[str, Scalar]) -> str | None:
        """The facts of an element as the page's script reads them to decide whether it is shown."""
        known = {key: scalar_text(facts[key]) for key, _, _ in self.choices if key in facts}
        return json.dumps(known) if known else None


def _varied(facts: Sequence[Mapping[str, Scalar]]) -> list[str]:
    keys = [*dict.fromkeys((*_LABELS, *(key for one in facts for key in one)))]
    chosen: dict[tuple[int | None, ...], str] = {}
    for key in keys:
        numbers: dict[str, int] = {}
        partition = tuple(
            numbers.setdefault(scalar_text(one[key]), place) if key in one else None for place, one in enumerate(facts)
        )
        if len(numbers) > 1:
            chosen.setdefault(partition, key)
    return list(chosen.values())


def _numbers_first(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value
