"""The version of a user's own code is that of its sources, without installed packages and the suite itself."""

import importlib

import pytest

from ampsweep.user_code import own_code


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write modules of the user and import `my_nets`, as a process does that has just begun."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
            monkeypatch.delitem(importlib.sys.modules, name, raising=False)
        importlib.invalidate_caches()
        importlib.import_module("my_nets")
        return own_code({"_target_": "ampsweep.data.digits.Digits"}, {"_target_": "my_nets.Net"})

    return written


@pytest.mark.parametrize(
    "use", ["from my_layers import Layer", "import my_layers", "from my_layers import Layer as L\nlayer = L()\ndel L"]
)
def test_a_change_in_the_model_or_its_imports_is_a_new_version(write, use):
    nets, layers = f"from torch import nn\n{use}\n\nclass Net(nn.Module): ...\n", "class Layer: ...\n"
    before = write(my_layers=layers, my_nets=nets)
    assert before.keys() == {"my_layers", "my_nets"}
    assert write(my_layers=layers, my_nets=nets) == before
    assert write(my_layers=layers + "# other\n", my_nets=nets)["my_layers"] != before["my_layers"]
    assert write(my_layers=layers, my_nets=nets + "# other\n")["my_nets"] != before["my_nets"]
    nested = {"_target_": "ampsweep.x.Y", "dataset": {"_target_": "my_nets.Net"}}
    assert own_code(nested, {"_target_": "torch.nn.Linear"}, {"_target_": "json.x"}).keys() == before.keys()
