"""Each default stands in one place: in the schema, or in a file of `conf/` where the schema leaves it open."""

import inspect
from collections import defaultdict
from dataclasses import MISSING, fields
from pkgutil import resolve_name

import omegaconf
import pytest
import yaml

from ampsweep.config import schema
from ampsweep.config.compose import conf_dir
from ampsweep.config.modes import MODES, PRECISION_MODES, differences
from ampsweep.config.schema import SCHEMAS


def content(path):
    return yaml.safe_load(path.read_text()) or {}


def schema_of(group, options):
    """The dataclass an option is checked against; None for a user's own component."""
    for line in options.get("defaults", ()):
        if str(line).startswith(start := f"/schema_{group}_"):
            return SCHEMAS[group][line.removeprefix(start).removesuffix("@_here_")]
    whole = schema.Config.__dataclass_fields__[group].type
    return whole if whole.__module__ == schema.__name__ else None


def defaults(dataclass):
    """The fields that a schema does not leave open, with their values."""
    found = {one.name: one.default_factory() if one.default is MISSING else one.default for one in fields(dataclass)}
    return {name: value for name, value in found.items() if value != omegaconf.MISSING}


FILES = {path: content(path) for path in sorted(conf_dir().glob("*/*.yaml")) if path.parent.name != "experiment"}
CHECKED = {path: schema_of(path.parent.name, FILES[path]) for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_no_file_repeats_a_default_of_its_schema(path):
    if CHECKED[path] is not None:
        by_default = defaults(CHECKED[path])
        assert not [key for key, value in FILES[path].items() if key in by_default and by_default[key] == value]


def test_a_default_that_files_change_is_that_of_another_option():
    given = defaultdict(list)
    for path, dataclass in CHECKED.items():
        given[dataclass].append(FILES[path].keys())
    del given[None]
    for dataclass, keys in given.items():
        for name in defaults(dataclass):
            assert not all(name in one for one in keys), f"{dataclass.__name__}.{name} is nobody's default"


def test_the_config_itself_gives_what_the_schema_leaves_open():
    own = set(content(conf_dir() / "config.yaml")) - {"defaults", "hydra"}
    assert own == {"name"}
    assert not own & defaults(schema.Config).keys()


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name in SCHEMAS and "_target_" in FILES[path]])
def test_a_constructor_says_no_other_default_than_the_schema(path):
    if CHECKED[path] is not None:
        by_default = defaults(CHECKED[path])
        for name, parameter in inspect.signature(resolve_name(FILES[path]["_target_"])).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                assert (name, parameter.default) == (name, by_default.get(name, "???"))


@pytest.mark.parametrize("mode", MODES)
def test_the_file_of_a_mode_holds_its_name_and_differences(mode):
    path = conf_dir() / "precision" / f"{mode}.yaml"
    assert content(path) == differences(PRECISION_MODES[mode], schema.PrecisionConfig())
    assert path.read_text().splitlines()[0] == f"# {MODES[mode].summary}"
