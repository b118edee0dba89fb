"""The list of points that would train, where they have several ranks."""

from ampsweep.commands.dry_run import plan_document
from ampsweep.config.compose import compose_points
from ampsweep.report.document import tables
from ampsweep.report.markdown import markdown
from ampsweep.sweep.preflight import Checked


def test_a_point_names_its_strategy_and_counts_once():
    overrides = ["parallel=ddp,fsdp2", "parallel.num_processes=2", "parallel.mixed_precision=policy,autocast"]
    configs = [point.config for point in compose_points([*overrides, "precision=amp_bf16"], multirun=True).points]
    document = plan_document(configs, [Checked(num_steps=3, num_parameters=7)] * len(configs), elsewhere=True)
    (table,) = tables(document)
    lines = [" ".join(cell.text for cell in row.cells) for row in table.rows]
    assert ["ddp x2" in line for line in lines[:2]] == [True, True]
    assert "fsdp2 x2" in lines[2]
    assert "4 points, 3 to train" in markdown(document)
