"""Building the servers that tests run against, once for each set of pinned modules.

    python tests/storage/build.py         build what is missing, print where it is

Each folder beside this file with a go.mod names one program as its tool. It is built into a cache folder outside the
checkout whose name is the hash of go.mod and go.sum, so that a second checkout and the next run find it. Whoever comes
while another builds, waits for that. Needs nothing but Python's own library, and Go.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = ("gcs_server",)


class NotBuilt(Exception):
    """A program is missing; the text says what to do."""


def program(name: str) -> Path:
    """Where a program is or will be."""
    modules = HERE / name
    digest = hashlib.sha256((modules / "go.mod").read_bytes() + (modules / "go.sum").read_bytes()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "everstep" / "programs" / f"{name}-{digest[:16]}" / name


def built(name: str) -> Path:
    """The program. Raises NotBuilt."""
    path = program(name)
    if not path.is_file():
        raise NotBuilt(f"{path} is not built yet; run `make programs` first (needs Go)")
    return path


def build(name: str) -> Path:
    """Build a program if it is missing. Raises NotBuilt: there is no Go, or the build fails."""
    path = program(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_file():
            return path
        if shutil.which("go") is None:
            raise NotBuilt(f"building {name} needs Go 1.26 or newer on PATH; install it from your distribution")
        tool = re.search(r"^tool (\S+)$", (HERE / name / "go.mod").read_text(), re.MULTILINE)
        assert tool is not None, f"{name}/go.mod names no tool"
        print(f"everstep: building {tool[1]} (once, some minutes)", file=sys.stderr, flush=True)
        unfinished = path.with_suffix(".unfinished")
        command = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(unfinished), tool[1]]
        done = subprocess.run(command, cwd=HERE / name, env={**os.environ, "CGO_ENABLED": "0"}, check=False)
        if done.returncode:
            raise NotBuilt(f"building {name} failed (reason above); try again: make programs")
        unfinished.rename(path)
    return path


def main() -> int:
    try:
        for name in PROGRAMS:
            print(build(name))
    except NotBuilt as error:
        print(f"everstep: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
