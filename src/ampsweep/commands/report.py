"""`ampsweep report`: rebuild the comparison of runs in directories, or on a W&B server, from their records."""

import math
import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from rich.text import Text

from ampsweep.config.errors import UserError
from ampsweep.report.compare import compare_directories
from ampsweep.report.comparison_document import comparison_document, write_comparison
from ampsweep.report.data_formats import CONSOLE, put_out
from ampsweep.report.terminal import Terminal
from ampsweep.run.directories import resolved_directory
from ampsweep.text import escaped, listed, plural
from ampsweep.tracking.wandb.copy import copy_runs
from ampsweep.tracking.wandb.library import WandbError
from ampsweep.tracking.wandb.selection import SCHEME, Selection

_ROOT: Final = Path("wandb_reports")


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
    directories = [
        _copied_runs(source, arguments.output) if source.startswith(SCHEME) else resolved_directory(Path(source))
        for source in arguments.sources
    ]
    compared = compare_directories(
        directories,
        baseline=arguments.baseline,
        margin_pct=arguments.margin_pct,
        memory_gib=arguments.memory_gib,
    )
    arms = dict.fromkeys(record.arm for _, record in compared.records)
    if arguments.baseline is not None and arguments.baseline not in arms:
        raise UserError(f"--baseline {arguments.baseline}: no run is of this arm; there are {', '.join(arms)}")
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


def _copied_runs(address: str, directory: Path | None) -> Path:
    """Load the runs at `address` that are not yet in `directory`, by default a folder of `wandb_reports`."""
    try:
        selection = Selection.parse(address)
    except ValueError as error:
        raise UserError(str(error)) from error
    console = Terminal(stderr=True)
    place = (directory or _ROOT.joinpath(*selection.folders)).resolve()
    try:
        with console.status(Text(str(selection))) as status:

            def show(number: int, of: int) -> None:
                status.update(Text(f"{selection}: {number} of {of}"))

            copied = copy_runs(selection, place, show)
    except WandbError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{error.filename or place}: cannot be written: {error.strerror}") from error
    counts = f"{plural(copied.num_loaded, 'run')} loaded, {copied.num_kept} unchanged"
    console.print(f"{selection}: {counts}, in {place}", soft_wrap=True)
    for reason in dict.fromkeys(reason for _, reason in copied.skipped):
        names = listed([name for name, why in copied.skipped if why == reason], limit=3)
        console.print(f"left out: {names}: {reason}", soft_wrap=True)
    return place
