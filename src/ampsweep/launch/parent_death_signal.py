"""The fork server's first import: from then on the kernel kills the server with its parent, whose death Python's fork
server notices only after all imports, on a busy machine minutes later."""

import ctypes
import signal

ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, which its children do not inherit
