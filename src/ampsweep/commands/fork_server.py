"""Imports for the fork server of a sweep, so that the runs forked from it begin with everything imported.

Nothing here touches a device. The imported objects are frozen: a garbage collection that visited them would copy their
memory into every run (https://docs.python.org/3/library/gc.html#gc.freeze).
"""

import importlib

from ampsweep.launch.garbage_collection import collect_new_garbage_only, paused_garbage_collection

with paused_garbage_collection():
    for _name in (
        "torch._dynamo",  # the first optimizer's import
        "ampsweep.sweep.preflight_checks",
        "ampsweep.run.lifecycle",
        "ampsweep.commands.train",  # what `train.py` imports: multiprocessing imports the main module in every child
    ):
        importlib.import_module(_name)
collect_new_garbage_only()
