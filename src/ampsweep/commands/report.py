"""`ampsweep report`: rebuild the comparison of runs in directories, or on a W&B server, from their records."""

import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from rich.text import Text

from ampsweep.analysis.comparison import LeftOut
from ampsweep.analysis.figure_keys import logged_keys
from ampsweep.config.errors import UserError
from ampsweep.finding import Finding
from ampsweep.metrics import goal_of
from ampsweep.report.compare import Compared, compare_directories
from ampsweep.report.comparison_document import comparison_document, write_comparison
from ampsweep.report.console import Terminal
from ampsweep.report.data_formats import CONSOLE, put_out
from ampsweep.run.directories import resolved_directory
from ampsweep.text import by_likeness, escaped, listed, plural
from ampsweep.tracking.wandb.copy import copy_runs
from ampsweep.tracking.wandb.foreign_run import ForeignKeys
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.selection import SCHEME, Selection

_ROOT: Final = Path("wandb_reports")
_SETTINGS: Final = ("baseline", "margin_pct", "metric", "goal", "memory_gib")  # fields of `ReportConfig`


def report_command(arguments: Namespace) -> int:
    for option, value in (("--margin-pct", arguments.margin_pct), ("--memory-gib", arguments.memory_gib)):
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{option} {value:g}: must be greater than 0")
    address = next((source for source in arguments.sources if source.startswith(SCHEME)), None)
    is_alone = len(arguments.sources) == 1
    if arguments.output is not None and not (address is not None and is_alone):
        raise UserError(f"--output {arguments.output}: is for the runs at one {SCHEME}... address")
    if arguments.wandb and not is_alone:
        raise UserError("--wandb sends the comparison of one directory")
    if arguments.publish:
        try:
            from ampsweep.report.wandb.views import save_views
        except ModuleNotFoundError as error:
            raise UserError(
                "--publish needs the optional package wandb-workspaces: pip install -e '.[publish]'"
            ) from error
    foreign, left_out = _foreign_keys(arguments, address), list[Finding]()
    directories = [
        _copied_runs(source, arguments.output, foreign, left_out)
        if source.startswith(SCHEME)
        else resolved_directory(Path(source))
        for source in arguments.sources
    ]
    settings = {name: getattr(arguments, name) for name in _SETTINGS}
    compared = compare_directories(directories, left_out, **settings)
    if arguments.metric is not None:
        _check_metric(arguments.metric, arguments.goal, compared)
    arms = dict.fromkeys(record.arm for _, record in compared.records)
    if arguments.baseline is not None and arguments.baseline not in arms:
        raise UserError(f"--baseline {arguments.baseline}: no run is of this arm; there are {', '.join(arms)}")
    if foreign is not None and compared.comparison.baseline not in arms:
        raise UserError(f"--baseline is needed: which of {', '.join(arms)} are the others compared with?")
    document = comparison_document(compared, directories[0] if is_alone else None)
    put_out(document, arguments.format)
    sys.stdout.flush()  # before writing files, which may fail on a full disk
    if is_alone:
        try:
            write_comparison(document, directories[0])
        except OSError as error:
            sentence = f"{directories[0]}: cannot be written: {error.strerror}"
            if arguments.format == CONSOLE or arguments.wandb:
                raise UserError(sentence) from error
            print(escaped(sentence), file=sys.stderr)
    if arguments.wandb:
        from ampsweep.report.wandb.send_comparison import publish_now

        print(escaped(f"W&B: {publish_now(directories[0], document, compared.records)}"), file=sys.stderr)
    if arguments.publish:
        for line in save_views(compared, document, address if is_alone else None):
            print(escaped(line), file=sys.stdout if arguments.format == CONSOLE else sys.stderr)
    return 0


def _foreign_keys(arguments: Namespace, address: str | None) -> ForeignKeys | None:
    arms, seed, time = arguments.arm_key, arguments.seed_key, arguments.time_key
    if arms is None and seed is None and time is None:
        return None
    if arms is None or address is None:
        raise UserError(
            f"--seed-key and --time-key need --arm-key, the config key that tells the arms of runs at {SCHEME}... apart"
        )
    if arguments.publish:
        raise UserError("--publish shows runs that this suite tracked, --arm-key reads others")
    return ForeignKeys(tuple(arms), seed or ForeignKeys.seed, time or ForeignKeys.time)


def _check_metric(metric: str, goal: str | None, compared: Compared) -> None:
    if not compared.comparison.keys.is_recorded:
        logged = by_likeness(metric, logged_keys(record for _, record in compared.records))
        raise UserError(f"--metric {metric}: no run has logged it; there are {listed(logged) or 'no numbers'}")
    if goal is None and goal_of(metric) is None:
        raise UserError(f"--metric {metric}: its name does not say its goal; add --goal minimize or --goal maximize")


def _copied_runs(address: str, directory: Path | None, foreign: ForeignKeys | None, left_out: list[Finding]) -> Path:
    """Load what is new of the runs at `address` into `directory`, by default a folder of `wandb_reports`; add findings
    on runs that cannot be compared to `left_out`."""
    selection = Selection.parse(address)
    console = Terminal(stderr=True)
    place = (directory or _ROOT.joinpath(*selection.folders)).resolve()
    try:
        with console.status(Text(str(selection))) as status:

            def show(number: int, of: int) -> None:
                status.update(Text(f"{selection}: {number} of {of}"))

            copied = copy_runs(selection, place, show, foreign)
    except WandbError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{error.filename or place}: cannot be written: {error.strerror}") from error
    counts = f"{plural(copied.num_loaded, 'run')} loaded, {copied.num_kept} unchanged"
    console.print(f"{selection}: {counts}, in {place}", soft_wrap=True)
    for reason in dict.fromkeys(reason for _, reason in copied.skipped):
        names = tuple(name for name, why in copied.skipped if why == reason)
        left_out.append(LeftOut(names=names, reason=reason))
        console.print(left_out[-1].sentence, soft_wrap=True)
    return place
