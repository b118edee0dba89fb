"""The list of points that would train, where they have several ranks."""

from ampsweep.commands.dry_run import print_plan
from ampsweep.config.compose import compose_points
from ampsweep.report.terminal import Terminal
from ampsweep.sweep.preflight import Checked


def test_a_point_names_its_strategy_and_a_repeated_one_its_first(capsys):
    overrides = ["parallel=ddp,fsdp2", "parallel.num_processes=2", "parallel.mixed_precision=policy,autocast"]
    configs = [point.config for point in compose_points([*overrides, "precision=amp_bf16"], multirun=True).points]
    print_plan(configs, [Checked(num_steps=3, num_parameters=7)] * len(configs), Terminal(width=120), elsewhere=True)
    lines = capsys.readouterr().out.splitlines()
    assert ["ddp x2" in line for line in lines[1:3]] == [True, True]
    assert "the same run as 0" in lines[2]
    assert "fsdp2 x2" in lines[3]
    assert "4 points, 3 to train" in lines[-1]
