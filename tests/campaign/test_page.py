"""The page says what was found, what was to be reached, and what was not measured."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from campaign.aims import NO_WAITING_TEST, aims
from campaign.call import Entry
from campaign.results import Results
from page import device_of, page

from ampsweep.record.parts import Contamination
from ampsweep.report.compare import compare_directories

PAGE = Path(__file__).parents[2] / "sweeps/results/page.py"
H100 = "NVIDIA H100 80GB HBM3"


def section(text, title):
    """The lines under a heading of the second level."""
    _, found = text.split(f"\n## {title}\n")
    return found.split("\n## ")[0].strip().splitlines()


def column(lines, header):
    """Cells below a header, by arm; of the first table that has it."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    start = next(index for index, row in enumerate(rows) if header in row)
    table = rows[start + 2 : start + 7]
    return {row[0]: row[rows[start].index(header)] for row in table}


@pytest.fixture(scope="module")
def on_h100(results, tmp_path_factory):
    """The same results, as if an H100 had given them, none of them disturbed."""
    directory = tmp_path_factory.mktemp("h100")
    for path, record in results.compared["recipe"].records:
        contamination = record.contamination | Contamination(verdict="clean", reasons=[])
        place = directory / path.name
        place.mkdir()
        moved = replace(record, identity=replace(record.identity, device_name=H100), contamination=contamination)
        moved.write(place)
    return Results(results.calls, {"recipe": compare_directories([directory])})


@pytest.mark.slow
def test_the_command_makes_it_from_the_packed_files_alone(finished, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-W", "error", PAGE, finished.packed, "--to", tmp_path / "page"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    text = (tmp_path / "page/README.md").read_text()
    assert "A rehearsal with tiny sizes" in text
    assert (tmp_path / "page/call1.tar.xz").read_bytes() == finished.packed.read_bytes()
    assert "Where the memory goes" in (tmp_path / "page/recipe.md").read_text()


@pytest.mark.slow
def test_what_was_not_measured_is_absent_and_said_to_be(results):
    text = page(results)
    found = {aim.what: (aim.measured, aim.reached) for aim in aims(results)}
    assert found["recipe, share of its roofline"] == (None, None)
    assert found["the suite's tests on the GPU"] == (None, None)
    errors = found["mlp_recipe, predicted peak memory against the measured"]
    assert errors[1] is True
    assert errors[0].startswith("+0.00% (")
    assert errors[0].endswith(", batch 8, the worst of 4)")
    left = "\n".join(section(text, "Not measured"))
    assert "name=gpt_small" in left
    assert "call 2 was not made" in left
    assert "/recipe.yaml" not in left
    assert "\n## ResNet-50\n" not in text
    recipe = "\n".join(section(text, "The PyTorch AMP recipe"))
    assert "MFU" not in recipe, "nobody knows this device's peak"
    assert "share of bound" not in recipe
    assert "tf32: unsupported" in recipe


@pytest.mark.slow
def test_on_a_known_device_the_recipe_is_held_against_its_bound(on_h100):
    text = page(on_h100)
    assert text.startswith(f"# {H100}\n")
    assert device_of(on_h100) == "h100-80gb-hbm3"
    recipe = section(text, "The PyTorch AMP recipe")
    assert set(column(recipe, "share of bound")) == {"fp32", "tf32", "amp_bf16", "amp_fp16", "pure_bf16"}
    assert column(recipe, "share of bound")["fp32"].endswith("%")
    assert "faster than fp32 by at most" in "\n".join(recipe)
    (reached,) = [aim.reached for aim in aims(on_h100) if aim.what == "recipe, share of its roofline"]
    assert reached is False, "a CPU's time is no H100's"


@pytest.mark.slow
def test_below_the_tables_stand_the_commands_that_repeat_them(results):
    recipe = section(page(results), "The PyTorch AMP recipe")
    suite, by_hand = recipe[recipe.index("```bash") + 1 : -1]
    assert suite.startswith("ampsweep sweep sweeps/results/recipe.yaml seed=0 model.hidden_size=32")
    assert by_hand.startswith("python sweeps/results/by_hand.py sweeps/results/recipe.yaml seed=0")


@pytest.mark.slow
def test_the_suite_stands_beside_the_loop_by_hand(on_h100):
    recipe = section(page(on_h100), "The PyTorch AMP recipe")
    beside = recipe[recipe.index("Beside the same loop written by hand:") :]
    assert column(beside, "n") == {"tf32": "-"} | dict.fromkeys(("fp32", "amp_bf16", "amp_fp16", "pure_bf16"), "1, 1")
    (workload,) = on_h100.workloads("recipe")
    by_hand = workload.arms[0].by_hand
    assert by_hand.median("peak_bytes") is None, "a CPU's allocator counts nothing"
    assert by_hand.against.n == 1
    assert by_hand.against.value == workload.arms[0].figures.step_ms / by_hand.median("step_ms")


@pytest.mark.slow
def test_tests_are_told_by_outcome(results):
    lines = [
        f"PASSED tests/training/test_costs_nothing.py::{NO_WAITING_TEST}[sgd-fp32]",
        "FAILED tests/test_some.py::test_bad - AssertionError: one is not two",
        "SKIPPED [1] tests/test_some.py:6: not here",
        "1 failed, 1 passed, 1 skipped in 0.02s",
    ]
    call = replace(results.calls[0], entries={"pytest -m gpu": Entry(printed="\n".join(lines))})
    tested = replace(results, calls=[*results.calls, call])
    shown = section(page(tested), "Tests on the GPU")
    assert shown[0] == "`pytest -m gpu`: 1 failed, 1 passed, 1 skipped in 0.02s."
    assert [line.split()[1] for line in shown[2:]] == ["FAILED", "SKIPPED"]
    found = {aim.what: (aim.measured, aim.reached) for aim in aims(tested)}
    assert found["the suite's tests on the GPU"] == ("1 of 2 pass", False)
    assert found["waits for the device between two flushes"] == ("1 of 1 pass", True)


@pytest.mark.slow
@pytest.mark.parametrize("times", [0, 2])
def test_a_file_that_is_missing_or_given_twice_is_one_sentence(finished, tmp_path, times):
    files = [finished.packed] * times or [tmp_path / "no"]
    ended = subprocess.run([sys.executable, PAGE, *files], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    said = "two files are of the same call" if times else "[Errno 2] No such file"
    assert ended.stderr.startswith(f"error: {said}")
    assert ended.stderr.count("\n") == 1
