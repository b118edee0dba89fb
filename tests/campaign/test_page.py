"""The page says what was found, what was to be reached, and what was not measured."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from campaign.junit import read_junit
from campaign.ledger import GpuTests
from campaign.page import device_of, page
from campaign.svg import Bar, Line, bars, lines, stacked

from ampsweep.record.parts import Contamination

PAGE = Path(__file__).parents[2] / "sweeps/results/page.py"
H100 = "NVIDIA H100 80GB HBM3"


def section(text, title):
    """The lines under a heading of the second level."""
    _, found = text.split(f"\n## {title}\n")
    return found.split("\n## ")[0].strip().splitlines()


@pytest.fixture
def on_h100(finished):
    """The same results, as if an H100 had given them, none of them disturbed."""

    def moved(record):
        contamination = record.contamination | Contamination(verdict="clean", reasons=[])
        identity = replace(record.identity, device_name=H100)
        return replace(record, identity=identity, contamination=contamination)

    results = finished.results
    records = {name: [(path, moved(one)) for path, one in runs] for name, runs in results.records.items()}
    return replace(results, records=records)


def test_the_command_makes_a_page_and_its_figures_from_the_packed_files_alone(finished, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-W", "error", PAGE, finished.packed, "--to", tmp_path / "page"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    text = (tmp_path / "page/README.md").read_text()
    assert "A rehearsal with tiny sizes" in text
    for path in (finished.packed).iterdir():
        assert (tmp_path / "page" / path.name).read_bytes() == path.read_bytes()
    shown = {line.split("](")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")}
    assert shown == {path.name for path in (tmp_path / "page").glob("*.svg")}
    assert "memory_recipe.svg" in shown
    for name in shown:
        ElementTree.parse(tmp_path / "page" / name)


def test_a_figure_that_was_not_measured_is_absent_and_said_to_be(finished):
    text, _ = page(finished.results)
    aims = "\n".join(section(text, "What was to be reached"))
    assert "| recipe, share of its roofline | 75 % in every mode | - | not measured |" in aims
    assert "| the suite's tests on the GPU | all pass | - | not measured |" in aims
    missing = section(text, "Not measured")
    assert "- gpt_small (GPT-2 124M, eager and compiled): not asked for" in missing
    assert not any(line.startswith("- recipe") for line in missing)
    assert "\n## ResNet-50\n" not in text
    table = [line for line in section(text, "The PyTorch AMP recipe") if line.startswith("|")]
    assert not any("MFU" in line or "share of bound" in line for line in table), "nobody knows this device's peak"


def test_on_a_known_device_the_recipe_is_held_against_its_bound(on_h100):
    text, figures = page(on_h100)
    assert text.startswith(f"# {H100}\n")
    recipe = section(text, "The PyTorch AMP recipe")
    header = next(line for line in recipe if line.startswith("| arm"))
    assert "bound | share of bound |" in header
    assert "T4" in "\n".join(recipe)
    assert "dashed" in figures["recipe.svg"]
    (reached,) = [line for line in section(text, "What was to be reached") if "share of its roofline" in line]
    assert "fp32 " in reached
    assert reached.endswith("| no |"), "a CPU's time is no H100's"
    assert device_of(on_h100) == "h100-80gb-hbm3"


def test_every_experiment_names_the_commands_that_repeat_it(finished):
    text, _ = page(finished.results)
    shown = section(text, "The PyTorch AMP recipe")
    assert "python sweeps/results/run.py --budget SECONDS --out DIR --only recipe --scale tiny" in shown
    (command,) = [line for line in shown if line.startswith("# python train.py")]
    assert "experiment=recipe" in command
    assert command.endswith("seed=0 precision=fp32,amp_bf16")


def test_the_suite_stands_beside_the_loop_by_hand(on_h100):
    text, _ = page(on_h100)
    rows = [line for line in section(text, "The PyTorch AMP recipe") if line.startswith(("| fp32", "| amp"))]
    beside = [row.split(" | ") for row in rows if "| 1, 1 |" in row]
    assert [row[0] for row in beside] == ["| fp32", "| amp_bf16"]
    by_hand = on_h100.hand("recipe", "fp32")
    assert by_hand.peak_bytes is None, "a CPU's allocator counts nothing"
    assert by_hand.wall_ms >= 0.5 * by_hand.step_ms > 0


TESTS = """
import pytest

def test_good(): pass
def test_bad(): assert 1 == 2, "one is not two"
@pytest.mark.skip(reason="not here")
def test_left_out(): pass
"""


def test_tests_are_told_by_outcome(finished, tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--junitxml=junit.xml"]
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, check=False)
    tests = read_junit(tmp_path / "junit.xml")
    assert tests.outcomes == {
        "test_some::test_good": "passed",
        "test_some::test_bad": "failed: AssertionError: one is not two",
        "test_some::test_left_out": "skipped: not here",
    }
    (tmp_path / "cut_off.xml").write_text((tmp_path / "junit.xml").read_text()[:200])
    assert read_junit(tmp_path / "cut_off.xml") is None
    text, _ = page(replace(finished.results, ledger=replace(finished.ledger, tests=tests)))
    assert "1 passed, 1 failed, 1 skipped" in section(text, "Tests on the GPU")[0]
    assert "| the suite's tests on the GPU | all pass | 1 of 2 | no |" in text


def test_waiting_between_flushes_is_answered_by_its_tests(finished):
    name = "test_costs_nothing::test_on_cuda_nothing_waits_between_two_flushes[sgd-fp32]"
    tests = GpuTests(seconds=1.0, outcomes={name: "passed"})
    text, _ = page(replace(finished.results, ledger=replace(finished.ledger, tests=tests)))
    assert "| waits for the device between two flushes | none | 1 of 1 tests pass | yes |" in text


def test_a_directory_without_a_campaign_is_one_sentence(tmp_path):
    ended = subprocess.run([sys.executable, PAGE, tmp_path], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"error: {tmp_path} holds no campaign.json\n"


def boxes(svg):
    return [node for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("rect")][1:]


def test_bars_are_as_long_as_their_values():
    rows = [Bar("a & b", 2.0, "2 ms", "#111111"), Bar("c", 1.0, "1 ms", "#222222", mark=4.0)]
    widths = [float(box.get("width")) for box in boxes(bars("title", rows))]
    assert widths == [240.0, 120.0], "the mark reaches further: it has the whole width of 480"


def test_parts_of_a_stack_add_up():
    rows = {"one": {"x": 3.0, "y": 1.0}, "two": {"x": 2.0}}
    svg = stacked("title", rows, {"x": "#111111", "y": "#222222"}, {"one": "4", "two": "2"})
    one, other, two = (float(box.get("width")) for box in boxes(svg)[:3])
    assert one + other == pytest.approx(2 * two, abs=0.2)


def test_measured_points_are_dots_and_predicted_ones_a_line():
    points = [(4.0, 2.0**30), (1.0, 2.0**28)]
    series = [Line("m", points, "#111111", dots=True), Line("p", points, "#222222")]
    svg = lines("title", series, x_title="batch", y_text=lambda value: f"{value:g} B")
    dots = [node for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("circle")]
    (line,) = [node for node in ElementTree.fromstring(svg).iter() if "L" in node.get("d", "")]
    assert sorted(f"{dot.get('cx')} {dot.get('cy')}" for dot in dots) == sorted(line.get("d")[1:].split("L"))
    assert f"{2**29:g} B" in svg
