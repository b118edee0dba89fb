"""The `ampsweep` command: what is done before runs, and once they exist.

Commands import what they need when they are called: a report's statistics take a fifth of a second.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ampsweep import __version__
from ampsweep.config.errors import UserError
from ampsweep.entries.collector import collector_at_rest

if TYPE_CHECKING:
    from ampsweep.entries.compare import Compared


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0, or 2 for wrong input)."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of directories may hold bytes that are no text
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        if given[:1] == ["predict"]:  # its arguments are Hydra's, which argparse would take for its own
            from ampsweep.entries.predict import predict_command

            return predict_command(given[1:])
        with collector_at_rest():
            return _report(_parser().parse_args(given))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Refuses a command line as everything else here does."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def _parser() -> _Parser:
    parser = _Parser(prog="ampsweep", description="Before and after runs of train.py.")
    parser.add_argument("--version", action="version", version=f"ampsweep {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="rebuild the comparison of one or more directories of runs")
    report.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="a multirun's directory")
    report.add_argument("--baseline", help="arm the others are compared with (default: as recorded)")
    report.add_argument("--margin-pct", type=float, help="loss gap that counts as none (default: as recorded)")
    report.add_argument("--format", choices=("console", "json"), default="console")
    report.add_argument("--screenshot", type=Path, metavar="FILE", help="also draw the page into a PNG file")
    commands.add_parser("predict", help="predict the memory of a training without running it")
    return parser


def _report(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from ampsweep.entries.compare import compare_directories
    from ampsweep.report.console import print_comparison
    from ampsweep.report.files import comparison_json, write_comparison

    margin_pct, baseline = arguments.margin_pct, arguments.baseline
    if margin_pct is not None and not 0 < margin_pct < math.inf:
        raise UserError(f"--margin-pct {margin_pct:g}: must be greater than 0")
    directories = [_resolved(directory) for directory in arguments.directories]
    compared = compare_directories(directories, baseline=baseline, margin_pct=margin_pct)
    arms = dict.fromkeys(record.arm for _, record in compared.records)
    if baseline is not None and baseline not in arms:
        raise UserError(f"--baseline {baseline}: no run is of this arm; there are {', '.join(arms)}")
    if len(directories) == 1:
        try:
            write_comparison(compared.comparison, compared.records, compared.histories, directories[0])
        except OSError as error:
            raise UserError(f"{directories[0]}: cannot be written: {error.strerror}") from error
    if arguments.screenshot is not None:
        _draw(compared, arguments.screenshot)
    if arguments.format == "json":
        print(comparison_json(compared.comparison), end="")
    else:
        alone = len(directories) == 1
        print_comparison(compared.comparison.relative_to(directories[0]) if alone else compared.comparison, Console())
    return 0


def _resolved(directory: Path) -> Path:
    try:
        return directory.resolve()
    except (OSError, RuntimeError) as error:  # a link to itself
        raise UserError(f"{directory}: {error}") from error


def _draw(compared: "Compared", picture: Path) -> None:
    """Draw the page of a comparison, of several directories too, for which no page is kept."""
    from ampsweep.report.files import HTML_NAME, write_comparison
    from ampsweep.report.screenshot import take_screenshot

    if not picture.absolute().parent.is_dir():
        raise UserError(f"--screenshot {picture}: there is no directory {picture.absolute().parent}")
    with tempfile.TemporaryDirectory() as directory:
        write_comparison(compared.comparison, compared.records, compared.histories, Path(directory))
        take_screenshot(Path(directory) / HTML_NAME, picture)


if __name__ == "__main__":
    sys.exit(main())
