"""`ampsweep report`: rebuild the comparison of runs in directories, or on a W&B server, from their records."""

import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from rich.text import Text

from ampsweep.analysis.comparison import LeftOut
from ampsweep.analysis.figure_keys import FigureKeys, logged_keys
from ampsweep.analysis.recommendation import MIN_DIFFERENCE
from ampsweep.analysis.sweep_changes import Records
from ampsweep.config.errors import UserError
from ampsweep.finding import Finding
from ampsweep.metrics import goal_of
from ampsweep.records.outcome import ALL_ENDED, REGRESSED
from ampsweep.report.changes_document import changes_document
from ampsweep.report.compare import compare_directories, compare_old_and_new
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
    for option in ("margin_pct", "memory_gib", "tolerance_pct"):
        value = getattr(arguments, option)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{option.replace('_', '-')} {value:g}: must be greater than 0")
    return _report(arguments) if arguments.against is None else _report_changes(arguments)


def _report_changes(arguments: Namespace) -> int:
    """Compare a sweep with an older one; 3 if an arm is worse than in that."""
    for option in ("baseline", "memory_gib", "output", "publish", "wandb"):
        if getattr(arguments, option) not in (None, False):
            raise UserError(f"--{option.replace('_', '-')} is not for --against")
    if len(arguments.sources) != 1:
        raise UserError("--against compares one directory with another: ampsweep report --against OLD NEW")
    (source,), left_out = arguments.sources, list[Finding]()
    given = (arguments.against, source)
    foreign = _foreign_keys(arguments, next((of for of in given if of.startswith(SCHEME)), None))
    old, new = (_directory(of, None, foreign, left_out) for of in given)
    tolerance_pct = 100 * MIN_DIFFERENCE if arguments.tolerance_pct is None else arguments.tolerance_pct
    settings = {name: getattr(arguments, name) for name in ("margin_pct", "metric", "goal")}
    changes, records, keys = compare_old_and_new(old, new, left_out, tolerance_pct=tolerance_pct, **settings)
    if arguments.metric is not None:
        _check_metric(arguments.metric, arguments.goal, keys, records)
    document = changes_document(changes, *given)
    put_out(document, arguments.format)
    sys.stdout.flush()
    try:
        write_comparison(document, new, "against")
    except OSError as error:  # the answer has been printed, and its exit code must not change
        print(escaped(f"{new}: cannot be written: {error.strerror}"), file=sys.stderr)
    return REGRESSED if changes.regressions else ALL_ENDED


def _report(arguments: Namespace) -> int:
    if arguments.tolerance_pct is not None:
        raise UserError("--tolerance-pct needs --against")
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
    directories = [_directory(source, arguments.output, foreign, left_out) for source in arguments.sources]
    settings = {name: getattr(arguments, name) for name in _SETTINGS}
    compared = compare_directories(directories, left_out, **settings)
    if arguments.metric is not None:
        _check_metric(arguments.metric, arguments.goal, compared.comparison.keys, compared.records)
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


def _check_metric(metric: str, goal: str | None, keys: FigureKeys, records: Records) -> None:
    if not keys.is_recorded:
        logged = by_likeness(metric, logged_keys(record for _, record in records))
        raise UserError(f"--metric {metric}: no run has logged it; there are {listed(logged) or 'no numbers'}")
    if goal is None and goal_of(metric) is None:
        raise UserError(f"--metric {metric}: its name does not say its goal; add --goal minimize or --goal maximize")


def _directory(source: str, output: Path | None, foreign: ForeignKeys | None, left_out: list[Finding]) -> Path:
    if source.startswith(SCHEME):
        return _copied_runs(source, output, foreign, left_out)
    return resolved_directory(Path(source))


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
