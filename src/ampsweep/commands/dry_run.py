"""`dry_run=true`: the runs of a command line, those that the device cannot do, and the time that they would take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from ampsweep.config.identity import run_directory_name
from ampsweep.config.modes import arm_label
from ampsweep.config.schema import Config, component_name
from ampsweep.config.seam import saved_in
from ampsweep.launch.child import NamedFunction
from ampsweep.launch.isolated import run_isolated
from ampsweep.report.terminal import Terminal
from ampsweep.run.directories import finished
from ampsweep.sweep.preflight import Checked
from ampsweep.text import duration

_ESTIMATE: Final = NamedFunction[list[float | None]]("ampsweep.sweep.estimate:estimate_seconds")


def print_plan(
    configs: Sequence[Config], checked: Sequence[Checked], console: Console, into: Path | None = None
) -> int:
    """Print one line per point and the time that all would take, estimated from a few steps timed now."""
    todo = [
        config
        for config, one in zip(configs, checked, strict=True)
        if one.unsupported is None and not _done(config, into)
    ]
    timed = [config for config in todo if not config.max_batch.search]  # nobody knows how long a search takes
    seconds = dict(zip(map(run_directory_name, timed), _estimated(timed), strict=True))
    if not console.is_terminal:
        console = Terminal(width=120)  # a pipe has no edge at 80 columns
    table = Table("#", "arm", "model", "data", "seed", "steps", "parameters", "time", "note", box=None, pad_edge=False)
    for number, (config, one) in enumerate(zip(configs, checked, strict=True)):
        estimate = seconds.get(run_directory_name(config))
        note = "unsupported" if one.unsupported else "finished earlier" if _done(config, into) else ""
        if config in todo and config not in timed:
            note = "searches its batch"
        elif not note and (before := saved_in(config)) is not None:
            note = f"from step {config.seam.step} of {before}"
        table.add_row(
            str(number),
            arm_label(config.precision),
            component_name(config.model),
            component_name(config.data),
            str(config.seed),
            f"{one.num_steps:,}",
            f"{one.num_parameters:,}",
            "" if estimate is None else duration(estimate),
            note,
        )
    console.print(table)
    for reason in sorted(
        {f"{arm_label(c.precision)}: {o.unsupported}" for c, o in zip(configs, checked, strict=True) if o.unsupported}
    ):
        console.print(reason)
    for sentence in dict.fromkeys(one.too_large for one in checked if one.too_large is not None):
        console.print(sentence)
    known = [value for value in seconds.values() if value is not None]
    console.print(
        f"{len(configs)} point{'' if len(configs) == 1 else 's'}, {len(todo)} to train; "
        f"about {duration(sum(known))}, from steps timed just now; nothing was trained or written",
    )
    return 0


def _estimated(configs: Sequence[Config]) -> list[float | None]:
    if not configs:
        return []
    return run_isolated(_ESTIMATE, (configs,)).unpacked()


def _done(config: Config, into: Path | None) -> bool:
    return into is not None and finished(into, config) is not None
