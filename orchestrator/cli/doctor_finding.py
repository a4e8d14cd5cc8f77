"""What ``everstep doctor`` says of one thing, and what it may ask the machine."""

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from orchestrator.contract.base import Part

ANSWER_SECONDS = 60.0
"""For an interpreter to say what is installed in it."""
_VERSIONS = """
import importlib.metadata as m, json, sys
print(json.dumps({d.metadata["Name"].lower().replace("_", "-"): d.version for d in m.distributions()}))
"""


class Finding(Part):
    """One check."""

    check: str
    outcome: Literal["ok", "warning", "problem"]
    """``warning``: it works, and a person may want to know; ``problem``: something will not work."""
    found: str
    remedy: str = ""
    """What to do; empty where nothing need be done."""


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, outcome="ok", found=found)


def warning(check: str, found: str, *, remedy: str) -> Finding:
    return Finding(check=check, outcome="warning", found=found, remedy=remedy)


def problem(check: str, found: str, *, remedy: str) -> Finding:
    return Finding(check=check, outcome="problem", found=found, remedy=remedy)


@dataclass(frozen=True)
class Machine:
    """The machine's answers; tests give others."""

    def python(self) -> str:
        """Version of this interpreter."""
        return platform.python_version()

    def requirements(self) -> Sequence[str]:
        """Of Everstep itself, as packaged. Raises PackageNotFoundError: it was not installed as a package."""
        return metadata.requires("everstep") or ()

    def installed(self, interpreter: str) -> Mapping[str, str]:
        """Versions by package of an interpreter, which need not be this one.

        Raises:
            OSError, subprocess.SubprocessError, ValueError: it does not answer.
        """
        done = subprocess.run(
            [interpreter, "-P", "-c", _VERSIONS], capture_output=True, timeout=ANSWER_SECONDS, check=True
        )
        versions: dict[str, str] = json.loads(done.stdout)
        return versions

    def interpreter(self) -> str:
        return sys.executable

    def cpus(self) -> int:
        """That this process may use."""
        return len(os.sched_getaffinity(0))

    def open_files(self) -> int:
        """The soft limit, which what is started from here inherits."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return sys.maxsize if soft == resource.RLIM_INFINITY else soft

    def free_bytes(self, folder: str) -> int:
        return shutil.disk_usage(folder).free

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()
