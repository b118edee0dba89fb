import subprocess
import sys

import pytest

AT_THE_END = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # called last
from ampsweep.launch.garbage_collection import collect_new_garbage_only
if sys.argv[1] == "nanobind":
    metaclass = type("nb_type_0", (type,), {"__module__": "nanobind"})
    bound = metaclass("context", (), {})
collect_new_garbage_only()
collect_new_garbage_only()
"""


@pytest.mark.parametrize(("binding", "is_frozen"), [("pybind11", True), ("nanobind", False)])
def test_frozen_objects_are_thawed_at_exit_for_nanobind_only(binding, is_frozen):
    said = subprocess.check_output([sys.executable, "-c", AT_THE_END, binding], text=True, timeout=60)
    assert said == f"{is_frozen}\n"
