"""The first import of a fork server: from then on it ends with its parent, even in the middle of the others.

Python's own looks for the parent's end only once all its imports are done, on a busy machine minutes later.
"""

import ctypes
import signal

ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, which its children do not inherit
