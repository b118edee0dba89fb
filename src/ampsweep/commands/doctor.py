"""`ampsweep doctor OVERRIDES | RUN_DIRECTORY`: why a training goes wrong in low precision, or gains nothing."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from ampsweep.commands.arguments import parse, taken_out
from ampsweep.config.compose import compose_points
from ampsweep.config.errors import UnsupportedError, UserError
from ampsweep.config.identity import config_hash
from ampsweep.config.modes import PRECISION_MODES, arm_of
from ampsweep.config.overrides import check_effect
from ampsweep.config.schema import COMPLAINTS, Complaint, Config, component_name
from ampsweep.launch.garbage_collection import collect_new_garbage_only, paused_garbage_collection
from ampsweep.launch.signals import stop_signals_as_interrupt
from ampsweep.record import FILE_NAME, RecordError, RunRecord, read_history, write_atomically
from ampsweep.record.numerics import RunNumerics
from ampsweep.redaction import hidden
from ampsweep.report.data_formats import CONSOLE, formats, put_out
from ampsweep.run.directories import has_checkpoint, new_directory
from ampsweep.text import escaped

if TYPE_CHECKING:
    from ampsweep.doctor.diagnosis import Diagnosis
    from ampsweep.doctor.patient import Patient
    from ampsweep.training.components.device import RunDevice

_MARKDOWN_NAME: Final = "diagnosis.md"
_PAGE_NAME: Final = "diagnosis.html"
_CHOSEN_MODE: Final = "precision=amp_bf16"
"""The precision that is examined where none is chosen."""
_HELP = """\
usage: ampsweep doctor [RUN_DIRECTORY] [KEY=VALUE ...] [format=json|csv|markdown]

Why a training with these overrides of train.py goes wrong in low precision, or gains nothing, and the smallest change
that mends it. Its first steps are taken again and again, in its own precision (amp_bf16 unless one is chosen) and in
float32. Of a run that went wrong they are the steps before its fault. Questions of its own:
  doctor.complaints=[loss]   examine only: types, loss, numerics, memory, speed
  doctor.steps=50            steps that are replayed at most
  doctor.max_seconds=60      time after which it tells what it has found"""
_OVERRIDES: Final = Path(".hydra") / "overrides.yaml"
_HYDRA: Final = Path(".hydra") / "hydra.yaml"
_SEARCH_PATH: Final = "hydra.searchpath="


def is_run_directory(argument: str) -> bool:
    """Tell whether an argument of a command line names the directory of a run, and is no override."""
    return (Path(argument).expanduser() / FILE_NAME).exists()


@dataclass(frozen=True)
class RecordedRun:
    """A run that was measured, in its directory."""

    directory: Path
    record: RunRecord
    overrides: tuple[str, ...]
    """Those of its command line or, in a sweep, of its point."""

    @staticmethod
    def read(directory: Path) -> "RecordedRun":
        """Read the run in `directory`.

        Raises:
            UserError: there is none, or its command line is not there.
        """
        directory = directory.expanduser().resolve()
        try:
            record = RunRecord.read(directory)
            given = yaml.safe_load((directory / _OVERRIDES).read_text(encoding="utf-8"))
            settings = yaml.safe_load((directory / _HYDRA).read_text(encoding="utf-8"))
        except (RecordError, FileNotFoundError) as error:
            raise UserError(f"{directory} is not the directory of a run: {error}") from error
        if record.kind != "measured":
            raise UserError(f"{directory} holds a prediction, and no run")
        of_hydra = settings["hydra"]["overrides"]["hydra"]
        found = [one for one in of_hydra if str(one).startswith(_SEARCH_PATH)]
        return RecordedRun(directory, record, tuple(map(str, (*given, *found))))

    def require_same(self, config: Config) -> None:
        """Make sure that the command line still means what the run has done.

        Raises:
            UserError: it means something else, since files of the configuration have changed.
        """
        if config_hash(config) != self.record.config_hash:
            raise UserError(
                f"{self.directory}: its command line means another training by now; give the overrides in place of it"
            )

    @property
    def has_checkpoint(self) -> bool:
        """Tell whether it has left a checkpoint."""
        return has_checkpoint(self.directory)

    @property
    def went_wrong(self) -> bool:
        """Tell whether its numbers, or an error, have ended it."""
        return self.record.status in ("diverged", "failed")

    @property
    def last_step(self) -> int:
        """The last step that it has logged, or would have logged next."""
        rows = read_history(self.directory)
        last = int(rows[-1]["step"]) if rows else 0
        steps = self.record.identity.steps or last
        log_every = int(self.record.config["trainer"]["log_every"])
        return min(steps, last + log_every) if self.went_wrong else last


@dataclass(frozen=True)
class _Case:
    overrides: tuple[str, ...]
    config: Config
    run: RecordedRun | None = None


def doctor_command(argv: Sequence[str]) -> int:
    """Examine the training of this command line of train.py, or of a run; returns the exit code."""
    given, chosen = taken_out(argv, "format", formats())
    with stop_signals_as_interrupt(), paused_garbage_collection():
        arguments = parse(given)
        if arguments.for_hydra:
            print(_HELP)
            return 0
        case = _case(arguments.overrides, arguments.multirun)
        # torch is imported here and not above: what is wrong with a command line is known without it.
        from ampsweep.training.components.device import taken_device

        with taken_device(case.config.device, lambda text: print(text, file=sys.stderr)) as taken:
            diagnosis, numerics = _diagnose(case, taken)
    _show(diagnosis, numerics, case, chosen)
    return 0


def _case(given: Sequence[str], multirun: bool) -> _Case:
    """The training of the overrides, or of the run whose directory comes before them."""
    run = None
    overrides = tuple(given)
    if overrides and is_run_directory(overrides[0]):
        run = RecordedRun.read(Path(overrides[0]))
        overrides = (*run.overrides, *overrides[1:])
    elif overrides and "=" not in overrides[0] and not overrides[0].startswith("~"):
        raise UserError(f"{overrides[0]}: neither the directory of a run nor key=value")
    elif not any(override.lstrip("+~").startswith("precision") for override in overrides):
        overrides = (*overrides, _CHOSEN_MODE)
    points = compose_points(overrides, multirun=multirun)
    if len(points.points) > 1:
        raise UserError(f"the doctor examines one training at a time, not {len(points.points)}")
    config = points.points[0].config
    if run is None:
        check_effect([config], overrides, "doctor")
    else:
        run.require_same(config)
    if config.parallel.strategy != "single":
        raise UserError(f"parallel={config.parallel.strategy}: the doctor examines a training in one process")
    if config.max_batch.search:
        raise UserError("max_batch.search=true: the doctor examines a training of one batch size; give data.batch_size")
    return _Case(overrides, config, run)


def _diagnose(case: _Case, taken: "RunDevice") -> tuple["Diagnosis", RunNumerics | None]:
    import torch

    from ampsweep.doctor.diagnosis import Diagnosis, in_order
    from ampsweep.doctor.examine import examine
    from ampsweep.doctor.patient import Patient
    from ampsweep.doctor.replay import KeptBatches
    from ampsweep.sweep.device_checks import check_precision
    from ampsweep.sweep.preflight_checks import check_single_run
    from ampsweep.training.components.built import build_model

    began_s, config = time.monotonic(), case.config
    arm = arm_of(config)
    # What is wrong in float32, too, is wrong input; all else is what the doctor is for.
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
    patient = Patient(
        config,
        taken.device,
        KeptBatches(prepared.data),
        num_steps=config.doctor.steps,
        deadline_s=began_s + config.doctor.max_seconds,
    )
    chosen: tuple[Complaint, ...] = tuple(one for one in COMPLAINTS if one in (config.doctor.complaints or COMPLAINTS))
    if case.run is not None:
        patient = _before_fault(patient, case.run)
    findings, unexamined = examine(patient, chosen, _tell)
    diagnosis = Diagnosis(
        arm=arm,
        model=component_name(config.model),
        data=component_name(config.data),
        device=str(taken),
        device_name=taken.name,
        run=None if case.run is None else str(case.run.directory),
        first_step=1 if patient.checkpoint is None else patient.checkpoint.checkpoint.step + 1,
        steps=config.doctor.steps,
        findings=in_order(findings),
        unexamined=unexamined,
        facts=patient.facts,
        seconds=time.monotonic() - began_s,
    )
    return diagnosis, patient.numerics


def _before_fault(patient: "Patient", run: RecordedRun) -> "Patient":
    """The training as it was shortly before the run went wrong, or at its beginning."""
    from ampsweep.doctor.patient import checkpoint_before_fault
    from ampsweep.training.checkpoint import CheckpointError
    from ampsweep.training.found_checkpoint import find_checkpoint

    if run.has_checkpoint:
        try:
            found = find_checkpoint(run.directory)
        except CheckpointError as error:
            raise UserError(str(error)) from error
        if found.checkpoint.step < run.last_step:
            patient = patient.starting_from(found)
    if run.went_wrong:
        _tell(f"steps up to {run.last_step}")
        found_before = checkpoint_before_fault(patient, run.last_step)
        patient = patient if found_before is None else patient.starting_from(found_before)
    return patient


def _show(diagnosis: "Diagnosis", numerics: RunNumerics | None, case: _Case, chosen: str) -> None:
    """Print a diagnosis, and then write its files, for which there may be no room."""
    from ampsweep.doctor.diagnosis_document import diagnosis_document
    from ampsweep.report.html import html
    from ampsweep.report.markdown import markdown

    document = diagnosis_document(hidden(diagnosis), numerics)
    put_out(document, chosen)
    try:
        directory = new_directory(case.config) if case.run is None else case.run.directory
        diagnosis.write(directory)
        write_atomically(directory / _MARKDOWN_NAME, markdown(document))
        write_atomically(directory / _PAGE_NAME, html(document))
    except (OSError, UserError) as error:
        print(escaped(f"the diagnosis's files are not written: {error}"), file=sys.stderr)
    else:
        if chosen == CONSOLE:
            print(escaped(f"\n{directory / _PAGE_NAME}", keeps="\n"))


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"examining {text} ...", file=sys.stderr)
