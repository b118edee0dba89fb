"""`ampsweep doctor OVERRIDES | RUN_DIRECTORY`: why a training fails in low precision, or gains nothing from it."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from ampsweep.commands.arguments import chooses_precision, parse, taken_out
from ampsweep.config.compose import compose_points
from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.identity import config_hash
from ampsweep.config.modes import PRECISION_MODES, arm_of
from ampsweep.config.overrides import check_effect
from ampsweep.config.schema import COMPLAINTS, Config, component_name
from ampsweep.launch.garbage_collection import collect_new_garbage_only, paused_garbage_collection
from ampsweep.launch.signal_handlers import stop_signals_as_interrupt
from ampsweep.records import FILE_NAME, RecordError, RunRecord, kept_checkpoints, read_history, write_atomically
from ampsweep.records.numerics import RunNumerics
from ampsweep.records.outcome import SOME_FAILED
from ampsweep.redaction import hidden
from ampsweep.report.data_formats import CONSOLE, formats, put_out
from ampsweep.run.directories import new_directory
from ampsweep.text import escaped

if TYPE_CHECKING:
    from ampsweep.doctor.diagnosis import Diagnosis
    from ampsweep.doctor.examined_training import ExaminedTraining
    from ampsweep.training.components.device import RunDevice

_PAGE_NAME: Final = "diagnosis.html"
_HELP = """\
usage: ampsweep doctor [RUN_DIRECTORY] [KEY=VALUE ...] [format=json|csv|markdown|html]

Find out why a training with these overrides of train.py fails in low precision, or gains nothing from it, and the
smallest change that fixes it. The doctor replays the first steps in the training's own precision (amp_bf16 by default)
and in float32; for a run that failed, it replays the steps before the failure. More settings:
  doctor.complaints=[loss]   examine only: types, loss, numerics, memory, speed
  doctor.steps=50            the most steps to replay
  doctor.max_seconds=60      time after which it reports what it has found"""


@dataclass(frozen=True)
class RunToExamine:
    directory: Path
    record: RunRecord
    overrides: tuple[str, ...]
    """Of its command line or, in a sweep, of its point."""

    @staticmethod
    def read(directory: Path) -> "RunToExamine":
        """Read the run in `directory`; UserError if there is none, or its command line is missing."""
        directory = directory.expanduser().resolve()
        if not (directory / FILE_NAME).exists():
            raise UserError(f"{directory} is no run directory: it has no {FILE_NAME}")
        try:
            record = RunRecord.read(directory)
            given = yaml.safe_load((directory / ".hydra/overrides.yaml").read_text(encoding="utf-8"))
            settings = yaml.safe_load((directory / ".hydra/hydra.yaml").read_text(encoding="utf-8"))
        except (RecordError, FileNotFoundError) as error:
            raise UserError(f"{directory} is no run directory: {error}") from error
        if record.kind != "measured":
            raise UserError(f"{directory} holds a prediction, and no run")
        of_hydra = map(str, settings["hydra"]["overrides"]["hydra"])
        searched = [item for item in of_hydra if item.startswith("hydra.searchpath=")]
        return RunToExamine(directory, record, (*map(str, given), *searched))

    @property
    def went_wrong(self) -> bool:
        return self.record.status in ("diverged", "failed")

    @property
    def last_step(self) -> int:
        """The last step that was logged, or, if the run went wrong, the next one that would have been."""
        rows = read_history(self.directory)
        last = int(rows[-1]["step"]) if rows else 0
        steps = self.record.identity.steps or last
        log_every = int(self.record.config["trainer"]["log_every"])
        return min(steps, last + log_every) if self.went_wrong else last


def doctor_command(argv: Sequence[str]) -> int:
    given, chosen = taken_out(argv, "format", formats())
    with stop_signals_as_interrupt(), paused_garbage_collection():
        arguments = parse(given)
        if arguments.for_hydra:
            print(_HELP)
            return 0
        config, run = _examined(arguments.overrides, arguments.multirun)
        # torch is imported only now: a wrong command line is refused without it.
        from ampsweep.training.components.device import taken_device

        with taken_device(config.device, lambda text: print(text, file=sys.stderr)) as taken:
            diagnosis, numerics = _diagnose(config, run, taken)
    return show(diagnosis, numerics, lambda: new_directory(config) if run is None else run.directory, chosen)


def _examined(overrides: tuple[str, ...], multirun: bool) -> tuple[Config, RunToExamine | None]:
    run, directories = None, [*filter(_is_directory, overrides)]
    if len(directories) > 1:
        raise UserError(f"the doctor examines one run at a time, not {' and '.join(directories)}")
    if directories:
        run = RunToExamine.read(Path(directories[0]))
        overrides = (*run.overrides, *(given for given in overrides if given != directories[0]))
    elif not chooses_precision(overrides):
        overrides = (*overrides, "precision=amp_bf16")
    points = compose_points(overrides, multirun=multirun)
    if len(points.points) > 1:
        raise UserError(f"the doctor examines one training at a time, not {len(points.points)}")
    config = points.points[0].config
    if run is None:
        check_effect([config], overrides, "doctor")
    elif config_hash(config) != run.record.config_hash:  # config files have changed
        means = "its command line means another training by now; give the overrides in place of it"
        raise UserError(f"{run.directory}: {means}")
    if config.parallel.strategy != "single":
        raise UserError(f"parallel={config.parallel.strategy}: the doctor examines a training in one process")
    if config.max_batch.search:
        raise UserError("max_batch.search=true: the doctor examines a training of one batch size; give data.batch_size")
    return config, run


def _is_directory(argument: str) -> bool:
    """Return True if an argument is not an override, for which Hydra would take it."""
    is_path = argument.startswith(("/", "./", "../", "~/")) or (Path(argument) / FILE_NAME).exists()
    return is_path or ("=" not in argument and not argument.startswith("~"))


def _diagnose(config: Config, run: RunToExamine | None, taken: "RunDevice") -> tuple["Diagnosis", RunNumerics | None]:
    import torch

    from ampsweep.doctor.diagnosis import Diagnosis, merged
    from ampsweep.doctor.examine import examine
    from ampsweep.doctor.examined_training import ExaminedTraining
    from ampsweep.doctor.replay import KeptBatches
    from ampsweep.sweep.device_checks import check_precision
    from ampsweep.sweep.preflight_checks import check_single_run
    from ampsweep.training.components.built import build_model

    began_s, arm = time.monotonic(), arm_of(config)
    # A training that cannot run in float32 either is wrong input.
    baseline = replace(config, precision=PRECISION_MODES["fp32"], tracking=replace(config.tracking, mode="disabled"))
    prepared, _ = check_single_run(baseline, taken)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = build_model(config)
    try:
        check_precision(config, taken.device, model)
    except UnsupportedError as error:
        raise UserError(f"precision={arm}: {error}") from error
    if prepared.data is None:
        raise UserError(f"data={component_name(config.data)} does not fit into the memory of {taken}")
    collect_new_garbage_only()
    examined = ExaminedTraining(
        config,
        taken.device,
        KeptBatches(prepared.data, began_s + config.doctor.max_seconds),
        num_steps=config.doctor.steps,
    )
    chosen = [complaint for complaint in COMPLAINTS if complaint in (config.doctor.complaints or COMPLAINTS)]
    if run is not None:
        examined = _before_fault(examined, run)
    findings, unexamined = examine(examined, chosen, _show_progress)
    diagnosis = Diagnosis(
        arm=arm,
        model=component_name(config.model),
        data=component_name(config.data),
        device=str(taken),
        device_name=taken.name,
        run=None if run is None else str(run.directory),
        first_step=1 if examined.checkpoint is None else examined.checkpoint.checkpoint.step + 1,
        steps=config.doctor.steps,
        findings=merged(findings),
        unexamined=unexamined,
        facts=examined.facts,
        seconds=time.monotonic() - began_s,
    )
    return diagnosis, examined.numerics


def _before_fault(examined: "ExaminedTraining", run: RunToExamine) -> "ExaminedTraining":
    """Start the training shortly before the run went wrong, or at its beginning."""
    from ampsweep.doctor.examined_training import checkpoint_before_fault
    from ampsweep.training.checkpoint import CheckpointError
    from ampsweep.training.found_checkpoint import find_checkpoint

    if kept_checkpoints(run.directory):
        try:
            found = find_checkpoint(run.directory)
        except CheckpointError as error:
            raise UserError(str(error)) from error
        if found.checkpoint.step < run.last_step:
            examined = replace(examined, checkpoint=found)
    if run.went_wrong:
        _show_progress(f"steps up to {run.last_step}")
        found_before = checkpoint_before_fault(examined, run.last_step)
        examined = examined if found_before is None else replace(examined, checkpoint=found_before)
    return examined


def show(diagnosis: "Diagnosis", numerics: RunNumerics | None, directory: Callable[[], Path], chosen: str) -> int:
    """Print the diagnosis, then write its files to the directory. Return 1 if that fails, as on a full disk; where even
    stdout cannot be written, print it on stderr."""
    from ampsweep.doctor.diagnosis_document import diagnosis_document
    from ampsweep.report.html import html
    from ampsweep.report.markdown import markdown

    document = diagnosis_document(hidden(diagnosis), numerics)
    try:
        put_out(document, chosen)
        sys.stdout.flush()
    except OSError:
        with redirect_stdout(sys.stderr):
            put_out(document, chosen)
    try:
        folder = directory()
        diagnosis.write(folder)
        write_atomically(folder / "diagnosis.md", markdown(document))
        write_atomically(folder / _PAGE_NAME, html(document))
    except (OSError, UserError) as error:
        print(escaped(f"the diagnosis's files are not written: {error}"), file=sys.stderr)
        return SOME_FAILED
    if chosen == CONSOLE:
        print(escaped(f"\n{folder / _PAGE_NAME}", keeps="\n"))
    return 0


def _show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"examining {text} ...", file=sys.stderr)
