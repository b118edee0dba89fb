"""`ampsweep predict OVERRIDES`: predict memory and speed of a training without its device and without running it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ampsweep.commands.arguments import Arguments, chooses_precision, parse, taken_out
from ampsweep.config.compose import compose_points
from ampsweep.config.errors import UserError
from ampsweep.config.identity import config_hash, workload_hash
from ampsweep.config.modes import MODES
from ampsweep.config.overrides import check_effect
from ampsweep.config.schema import Config
from ampsweep.launch.garbage_collection import collect_new_garbage_only, paused_garbage_collection
from ampsweep.predict.gpus import chosen_gpus
from ampsweep.report.data_formats import CONSOLE, formats, put_out
from ampsweep.text import escaped

_CALIBRATE: Final = "--calibrate"
_HELP = """\
usage: ampsweep predict [-m] [KEY=VALUE ...] [format=json|csv|markdown|html]

Predict the memory of a training with these overrides of train.py, without running it: for every precision mode, unless
you choose one; with predict.speed=true also its speed on several GPUs, in torch's own modes. More settings:
  predict.target=cuda        the device: cpu, cuda, or auto, the kind that device= means
  predict.capability=9.0     its CUDA compute capability: 7.5 a T4, 8.0 an A100, 8.9 an RTX 4090, 9.0 an H100
  predict.memory_gib=16      the largest batch that fits
  predict.batch_sizes=[8,64] the batch sizes of the table
  parallel=fsdp2 parallel.num_processes=8   the fullest of 8 ranks; with memory_gib the fewest of 2, 4, 8 ... that fit
  predict.speed=true         speed, what bounds it, what fits and the largest batch on GPUs that are for rent
  predict.gpus=[T4,A100-80]  on these GPUs
  predict.prices='{T4: 0.35, A100-80: 1.8}'   with the cost, by the price of an hour
  predict.write=true         leave a record (kind: predicted) for each mode below output_dir

ampsweep predict --calibrate [device=cuda:1]   measure a device for a minute; predictions of its speed use it then"""


def predict_command(argv: Sequence[str]) -> int:
    """Predict the memory of the trainings of this command line; return the exit code. UserError: a workload cannot be
    predicted."""
    overrides, chosen = taken_out(argv, "format", formats())
    if _CALIBRATE in overrides:
        return _calibrate([override for override in overrides if override != _CALIBRATE], chosen)
    with paused_garbage_collection():
        arguments = parse(overrides)
        if arguments.for_hydra:
            print(_HELP)
            return 0
        workloads = _workloads(arguments)
        gpus = [chosen_gpus(configs[0].predict) for configs in workloads]
        # torch is imported only now: a wrong command line is refused without it.
        from ampsweep.predict.gpu_comparison import on_gpus
        from ampsweep.predict.prediction_document import prediction_document
        from ampsweep.predict.speed_document import speed_document
        from ampsweep.predict.workload_prediction import predict, write_records

        collect_new_garbage_only()
        predicted = [predict(configs, [*of]) for configs, of in zip(workloads, gpus, strict=True)]
    predictions = [on_target for of in predicted for on_target in of]
    written = [write_records(found) for found in predictions if found.arms and found.arms[0].config.predict.write]
    speeds = [on_gpus(*both) for both in zip(predicted, gpus, strict=True) if any(gpus)]
    put_out(speed_document(speeds) if speeds else prediction_document(predictions), chosen)
    if chosen == CONSOLE:
        for directory in written:
            print(escaped(str(directory)))
    return 0


def _calibrate(overrides: Sequence[str], chosen: str) -> int:
    """Measure the device that the command line names; UserError if it also describes a training."""
    if others := [override for override in overrides if not override.startswith("device=")]:
        raise UserError(f"{_CALIBRATE} measures a device, whatever is trained: {others[0]} has no effect")
    device = compose_points(overrides, multirun=False).points[0].config.device
    from ampsweep.predict.device_calibration import calibrate_and_keep, calibration_document

    put_out(calibration_document(*calibrate_and_keep(device)), chosen)
    return 0


def _workloads(arguments: Arguments) -> list[list[Config]]:
    """Group configs that differ only in precision; without a chosen precision, a config stands for every mode, for
    speeds for every one of torch's own."""
    points = compose_points(arguments.overrides, multirun=arguments.multirun)
    configs = [replace(point.config, seed=0) for point in points.points]  # a seed takes no memory
    check_effect(configs, arguments.overrides, "predict")
    if not (points.multirun or chooses_precision(arguments.overrides)):
        modes = [mode for mode in MODES.values() if mode.implementation is None or not configs[0].predict.of_gpus]
        configs = [replace(configs[0], precision=mode.settings) for mode in modes]
    workloads: dict[str, dict[str, Config]] = defaultdict(dict)
    for config in configs:
        workloads[workload_hash(config)].setdefault(config_hash(config), config)
    return [list(arms.values()) for arms in workloads.values()]
