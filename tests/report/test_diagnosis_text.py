import io
import json

import pytest
from shown_diagnoses import LONG_MODULE, diagnosis, install

from ampsweep.record.diagnosis import Diagnosis, in_order
from ampsweep.report.diagnosis_text import as_json, print_diagnosis
from ampsweep.report.terminal import Terminal


@pytest.fixture(autouse=True)
def sentences(monkeypatch):
    install(monkeypatch)


def printed(of, width=80, *, terminal=True):
    stream = io.StringIO()
    print_diagnosis(of, Terminal(file=stream, width=width, force_terminal=terminal, color_system=None))
    return stream.getvalue()


@pytest.mark.parametrize("width", [50, 80, 120])
def test_all_but_code_fits_into_the_terminal(width):
    lines = printed(diagnosis(), width).splitlines()
    assert [line for line in lines if len(line) > width and LONG_MODULE not in line and "=" not in line] == []


def test_prices_stand_at_the_right():
    lines = printed(diagnosis()).splitlines()
    assert " 5. The host waits for the device 3 times a step                   38.8% of time" in lines
    assert sum(line.endswith((" of time", " of memory")) for line in lines) == 4


def test_what_is_to_be_copied_is_on_one_line():
    text = printed(diagnosis())
    assert f"'precision.fp32_modules=[{LONG_MODULE}]' precision.init_scale=1024\n" in text
    assert "\n             hidden = hidden.to(self.head.weight.dtype)\n" in text


def test_each_line_says_what_it_is():
    finding = printed(diagnosis(), 200).partition("\n 5. ")[2].partition("\n 6. ")[0]
    labels = [line[4:12].strip() for line in finding.splitlines()[1:] if line.strip()]
    assert labels == ["module", "operator", "at", "seen", "seen", "change", "", "tried"]
    assert "✓ a step takes 5.02 ms" in finding


def test_the_end_sums_up():
    assert printed(diagnosis()).rstrip().endswith("8 findings, memory not examined, 50 steps replayed at most, 41 s")


def test_nothing_found_is_said():
    healthy = Diagnosis(arm="amp_bf16", model="mlp", data="digits", device="cpu", device_name="a CPU", seconds=3.0)
    assert printed(healthy).split("\n\n") == [
        "\namp_bf16, mlp on digits, a CPU",
        "nothing found, 3.0 s\n",
    ]


def test_names_cannot_steer_the_terminal():
    sick = diagnosis()
    sick.findings[0].modules[0] = "\x1b[2Jhead"
    assert "\x1b" not in printed(sick)
    assert "\\x1b[2Jhead" in printed(sick)


def test_the_json_has_facts_and_sentences():
    content = json.loads(as_json(diagnosis()))
    mismatch = content["findings"][0]
    assert mismatch["kind"] == "shown_mismatch"
    assert mismatch["modules"] == ["decoder.head"]
    assert mismatch["operator"] == "aten.addmm"
    assert mismatch["place"] == "nets.py, line 41"
    assert mismatch["change"] == {"overrides": [], "code": "hidden = hidden.to(self.head.weight.dtype)"}
    assert mismatch["headline"].startswith("aten.addmm gets")
    assert mismatch["sentences"]["evidence"][1] == "its input is float32"
    assert content["findings"][3]["headline"] == "<b>unknown</b> kind & more"
    assert [one["kind"] for one in content["findings"]] == [one.kind for one in in_order(diagnosis().findings)]
