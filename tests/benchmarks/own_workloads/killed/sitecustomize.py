"""kill -9 in the middle of a training: Python imports this at its start where it is on the path.

AMPSWEEP_TEST_KILL_AT is the number of optimizer steps of a process after which it is killed.
"""

import os
import signal
from itertools import count

if "AMPSWEEP_TEST_KILL_AT" in os.environ:
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    _steps, _last = count(1), int(os.environ["AMPSWEEP_TEST_KILL_AT"])

    def _killed(optimizer, *_):
        if isinstance(optimizer.param_groups[0]["params"][0], FakeTensor):
            return  # a prediction, not the training
        if next(_steps) == _last:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_pre_hook(_killed)
