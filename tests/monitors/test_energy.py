"""Energy per sample: of training steps alone, by the device's counter, and only where that can tell it."""

import pytest

from ampsweep.metrics import METRICS
from ampsweep.monitors.device_sampler import MIN_STRETCH_S, EnergyMeter


def counter(*joules):
    """Reads these one after the other."""
    return iter(joules).__next__


def test_it_is_the_counters_growth_over_the_samples_of_the_steps():
    meter = EnergyMeter(counter(1000.0, 1600.0), samples_per_step=8, min_stretch_s=0)
    meter.begin(10)
    meter.end(40)
    assert meter.summary() == {"device/energy_per_sample_j": 600 / (30 * 8)}
    assert meter.summary().keys() <= METRICS.keys()


def test_what_happens_between_two_stretches_is_left_out():
    meter = EnergyMeter(counter(0.0, 100.0, 900.0, 1100.0), samples_per_step=1, min_stretch_s=0)
    meter.begin(0)
    meter.end(10)
    meter.begin(10)
    meter.end(30)
    assert meter.summary() == {"device/energy_per_sample_j": (100 + 200) / 30}


def test_a_stretch_that_is_too_short_for_the_counter_is_left_out():
    assert MIN_STRETCH_S == 2.0, "20 times the counter's 100 ms"
    meter = EnergyMeter(counter(0.0, 100.0), samples_per_step=1)
    meter.begin(0)
    meter.end(10)
    assert meter.summary() == {}


def test_a_stretch_without_beginning_or_end_does_not_count():
    meter = EnergyMeter(counter(0.0, 100.0), samples_per_step=1, min_stretch_s=0)
    meter.end(5)
    meter.begin(5)
    assert meter.summary() == {}


@pytest.mark.parametrize("joules", [(None, 100.0), (100.0, None)])
def test_without_a_counter_there_is_no_figure(joules):
    meter = EnergyMeter(counter(*joules), samples_per_step=1, min_stretch_s=0)
    meter.begin(0)
    meter.end(10)
    assert meter.summary() == {}
