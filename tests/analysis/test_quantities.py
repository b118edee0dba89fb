import pytest

from ampsweep.analysis.statistics import Estimate
from ampsweep.text import first_line, loss, merge_figures, num_bytes, number, percent, signed


@pytest.mark.parametrize(
    ("value", "text"),
    [(6.1234, "6.12"), (61.234, "61.2"), (6123.4, "6123"), (0.061234, "0.0612"), (6.1234e-8, "6.12e-08"), (0.0, "0")],
)
def test_numbers_have_three_digits_and_their_whole_part(value, text):
    assert number(value) == text


def test_signs_and_units():
    assert (signed(0.5), signed(-0.5), signed(0.0)) == ("+0.500", "-0.500", "0")
    assert (num_bytes(3 * 2**29), num_bytes(2.0**20), num_bytes(-2048.0), num_bytes(12.0), num_bytes(-0.3)) == (
        "1.50 GiB",
        "1.00 MiB",
        "-2.00 KiB",
        "12 B",
        "0 B",
    )
    assert (percent(31.25), percent(0.123), loss(2.40131), loss(0.000123)) == ("31.2%", "0.12%", "2.4013", "0.000123")


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (Estimate(value=1.4941, n=3, low=1.4552, high=1.5340), ("1.49", ("1.46", "1.53"))),
        (Estimate(value=1.49, n=3, low=1.4898, high=1.4902), ("1.4900", ("1.4898", "1.4902"))),
        (Estimate(value=0.00071, n=3, low=-0.0012, high=0.0026), ("0.0007", ("-0.0012", "0.0026"))),
        (Estimate(value=1.23e-7, n=3, low=-4e-8, high=2.9e-7), ("1.23e-07", ("-4.00e-08", "2.90e-07"))),
        (Estimate(value=0.0, n=3, low=-0.5, high=0.5), ("0.00", ("-0.50", "0.50"))),
        (Estimate(value=1.5, n=2), ("1.50", None)),
    ],
)
def test_an_estimate_and_its_interval_share_their_decimals(of, text):
    assert of.text() == text


def test_the_first_line_of_an_error_is_short():
    assert first_line("  CUDA out of memory.\nTraceback") == "CUDA out of memory"
    assert first_line("\n") == ""
    assert len(first_line("x" * 1000)) == 200


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (["0.6 of 2 cores busy", "1.0 of 2 cores busy"], ["0.6 to 1.0 of 2 cores busy"]),
        (["1.0 of 2 cores", "1.0 of 2 cores"], ["1.0 of 2 cores"]),
        (["1.0 of 2 cores", "1.0 of 4 cores"], ["1.0 of 2 cores", "1.0 of 4 cores"]),
        (["slowed in 12% of them", "slowed in 9% of them"], ["slowed in 9 to 12% of them"]),
        (["the loss is nan at step 7", "the loss is nan at step 40"], ["the loss is nan at step 7 to 40"]),
        (["2.00 GiB, 512 MiB free", "4.00 GiB, 64 MiB free"], ["2.00 to 4.00 GiB, 64 to 512 MiB free"]),
        (["the scale is 1e-08", "the scale is 2e-10"], ["the scale is 2e-10 to 1e-08"]),
        (["process 12 computed", "process 14 computed"], ["process 12 computed", "process 14 computed"]),
        (["torch 2.12.0", "torch 2.13.0"], ["torch 2.12.0", "torch 2.13.0"]),
        (["seed1.5a", "seed2.5a"], ["seed1.5a", "seed2.5a"]),
    ],
)
def test_texts_that_differ_in_measured_figures_are_one(texts, merged):
    assert [text for text, _ in merge_figures(texts)] == merged
