"""Processes that do not outlive whoever started them, even when that one is killed."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_THEN_EXECUTE = """
import ctypes, os, signal, sys
parent, nice = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
if os.getppid() != parent:
    os.kill(os.getpid(), signal.SIGKILL)
os.nice(nice)
os.execv(sys.argv[3], sys.argv[3:])
"""


def mortal(command: Sequence[str | Path], *, nice: int = 0) -> list[str]:
    """A command that becomes ``command`` (its program an absolute path) and that the kernel ends with this process.

    A command and no preexec_fn, which is not safe where there are threads. The kernel's word for "this process" is the
    thread that starts it: start it from one that stays.
    """
    return [sys.executable, "-I", "-S", "-c", _THEN_EXECUTE, str(os.getpid()), str(nice), *map(str, command)]
