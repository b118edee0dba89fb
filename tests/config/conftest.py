"""Hydra takes a tenth of a second for each choice of options; the tests of this folder share what it composed."""

import pickle

import pytest

from ampsweep.config import compose

COMPOSED = {}


@pytest.fixture(autouse=True)
def composed_once(monkeypatch):
    real = compose.compose

    def cached(name, overrides, **more):
        key = (name, *overrides)
        if key not in COMPOSED:
            COMPOSED[key] = pickle.dumps(real(name, overrides, **more))
        return pickle.loads(COMPOSED[key])

    monkeypatch.setattr(compose, "compose", cached)
