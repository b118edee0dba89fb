"""Comparisons of very many runs: what each costs does not grow, and pages stay small without changing a figure."""

import cProfile
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from shown_runs import document_of, history, like, on_gpu
from synthetic_records import Entry, contaminated, failed

from ampsweep.analysis.comparison import compare
from ampsweep.record import HISTORY_NAME, history_line
from ampsweep.report.data_formats import as_json
from ampsweep.report.document import blocks_of, tables
from ampsweep.report.figure import Figure
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown


def _seeds(num_runs: int) -> list[Entry]:
    return [on_gpu(arm, seed) for seed in range(num_runs // 2) for arm in ("fp32", "amp_bf16")]


def _troubled(num_runs: int) -> list[Entry]:
    """Every second run of an arm is lost or contaminated, and another arm has no baseline with its settings."""
    entries = []
    for seed in range(num_runs // 4):
        good = on_gpu("fp32", seed)
        lost = failed("amp_fp16", seed, "oom", f"out of memory in backward of step {seed + 2}", **like(good))
        disturbed = contaminated("amp_bf16", seed, f"other processes kept 1.{seed % 10} cores busy", **like(good))
        other = like(good) | {"config": {"data": {"batch_size": 8}, "optimizer": {"weight_decay": 0.1}}}
        alone = contaminated("amp_fp16", seed, directory=f"alone-{seed}", **other)
        entries += [good, lost, disturbed, alone]
    return entries


def _random_search(num_runs: int) -> list[Entry]:
    """A weight decay of its own for every two runs; of every second one the baseline is missing."""
    entries = []
    for number in range(num_runs // 2):
        for arm in ("fp32", "amp_bf16") if number % 2 else ("amp_fp16", "amp_bf16"):
            good = on_gpu(arm, 0)
            record = good[1]
            record.config["optimizer"]["weight_decay"] = 0.001 * number
            record.pair_key = f"decay {number}"
            entries.append((Path(f"{arm}-{number}"), record))
    return entries


@pytest.mark.parametrize("entries", [_seeds, _troubled, _random_search])
def test_a_run_among_many_costs_no_more_calls(entries: Callable[[int], list[Entry]], tmp_path: Path) -> None:
    few, many = (_num_calls(lambda n=n: _documents(entries(n), tmp_path)) for n in (60, 240))
    assert many < 4.2 * few, (few, many)


def _documents(entries: Sequence[Entry], directory: Path) -> tuple[str, str, str]:
    document = document_of(entries, directory)
    return as_json(document), markdown(document), html(document)


def _num_calls(work: Callable[[], Any]) -> int:
    """Calls of Python's and of C's functions: a scan of all runs for each run is in those of what it compares."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def test_a_page_of_many_seeds_draws_some_and_counts_all(tmp_path: Path) -> None:
    entries = _seeds(2400)
    for directory, record in entries:
        (tmp_path / directory).mkdir(parents=True)
        rows = "".join(history_line(row) for row in history(record.arm, record))
        (tmp_path / directory / HISTORY_NAME).write_text(rows)
    document = document_of([(tmp_path / path, record) for path, record in entries], tmp_path)
    page, (workload,) = html(document), json.loads(as_json(document))["workloads"]
    assert (len(workload["runs"]), workload["arms"][1]["num_runs"], workload["arms"][1]["speedup"]["n"]) == (
        2400,
        1200,
        1200,
    )
    assert len(page) < 8 * 2**20
    runs = next(table for table in tables(document) if table.key == "runs")
    assert len(runs.rows) == 1000  # and the rest told
    assert "1,400 more runs are in comparison.json" in page
    assert "Of up to 1,200 dots of an arm the first 200 are drawn" in page
    figures = (one for one in blocks_of(document.sections) if isinstance(one, Figure))
    curves = next(figure for figure in figures if figure.key == "train-loss")
    assert curves.table is not None
    assert curves.table.rows[0].cells[-1].text == "1200"  # the figures are of all runs
    assert len(curves.traces) == 2 * 3, "a band for each arm"
    assert curves.remarks[0] == "fp32: 1,200 runs have no line of their own; comparison.json has all runs."


def test_of_many_workloads_the_first_have_panels(tmp_path: Path) -> None:
    document = document_of(_random_search(800), tmp_path)
    (panels,) = (one for one in document.sections if one.key == "panels")
    assert len(panels.blocks) == 30
    assert "370 more workloads in comparison.json." in html(document)
    assert len(json.loads(as_json(document))["workloads"]) == 400


def test_a_usual_page_draws_every_run(tmp_path: Path) -> None:
    document = document_of(_seeds(100), tmp_path)
    assert "more runs are in" not in html(document)


def test_reasons_name_the_nearest_of_many_baselines() -> None:
    """As comparing each pair of runs does: the one with the fewest differences, and of those the first."""
    entries = []
    for number, (decay, lr) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 2.0), (0.4, 3.0)]):
        directory, record = on_gpu("fp32", 0)
        record.config["optimizer"] |= {"weight_decay": decay, "lr": lr}
        entries.append((Path(f"fp32-{number}"), record))
        record.pair_key = f"baseline {number}"
    directory, record = on_gpu("amp_bf16", 0)
    record.config["optimizer"] |= {"weight_decay": 0.5, "lr": 2.0}
    record.pair_key = "other"
    comparison = compare([*entries, (directory, record)], baseline="fp32", margin_pct=1.0)
    reasons = [run.not_paired for one in comparison.workloads for run in one.runs if run.arm == "amp_bf16"]
    (reason,) = reasons
    assert reason is not None
    assert [(one.key, one.there, one.here) for one in reason.differences] == [("optimizer.weight_decay", "0.2", "0.5")]
