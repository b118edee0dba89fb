"""A comparison as W&B gets it: as a run of its own, without rows of a training."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class PageTable:
    """A table of values, None where there is none."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[Scalar, ...]]


@dataclass(frozen=True)
class ComparisonPage:
    """What the run of a comparison shows; names of tables and figures are keys in W&B."""

    id: str
    """Of the W&B run, always the same for a multirun: a comparison that has grown takes the place of the one before."""
    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    tables: Mapping[str, PageTable]
    figures: Mapping[str, Mapping[str, Any]]
    """Figures of Plotly, as its JSON."""
    html: Path
    """The same as one self-contained file."""

    @property
    def digest(self) -> str:
        """Equal for pages that show the same."""
        shown = {name: value for name, value in asdict(self).items() if name != "html"}
        return hashlib.sha256(json.dumps(shown, sort_keys=True, default=str).encode()).hexdigest()[:12]
