"""Building the servers that tests run against, once for each set of pinned modules.

    python tests/programs/build.py           build what tests need and is missing, print where it is
    python tests/programs/build.py kwok      that folder alone; kwok, for nodes by the thousand, is no test's need

Each folder beside this file with a go.mod pins one program, or several of one source, as its tools. They are built into
a cache folder outside the checkout whose name is the hash of go.mod and go.sum, so that a second checkout and the next
run find them. Whoever comes while another builds, waits for that. Needs nothing but Python's own library, and Go.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NEEDED = ("gcs_server", "etcd", "kubernetes", "jobset")
"""The folders of what tests need, in the order in which they are built."""


class NotBuilt(Exception):
    """A program is missing; the text says what to do."""


def built(name: str, *, of: str | None = None) -> Path:
    """The program ``name`` of the folder ``of`` (None: the one named as it). Raises NotBuilt."""
    path = _cache(of or name) / name
    if not path.is_file():
        raise NotBuilt(f"{path} is not built yet; run `make programs` first (needs Go)")
    return path


def source(name: str, *, module: str) -> Path:
    """Where a pinned module of a folder is unpacked, for the manifests in it. Raises NotBuilt."""
    _need_go(name)
    command = ["go", "mod", "download", "-json", module]
    done = subprocess.run(command, cwd=HERE / name, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuilt(f"{module} of {name} is not to be had: {done.stdout.strip() or done.stderr.strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def build(name: str) -> list[Path]:
    """Build what is missing of a folder. Raises NotBuilt: there is no Go, or the build fails."""
    cache = _cache(name)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        paths = {cache / program: package for program, package in _tools(name).items()}
        for path, package in paths.items():
            if not path.is_file():
                _build(package, into=path, folder=HERE / name)
    return list(paths)


def _build(package: str, *, into: Path, folder: Path) -> None:
    _need_go(folder.name)
    print(f"everstep: building {package} (once, some minutes)", file=sys.stderr, flush=True)
    begun = time.monotonic()
    unfinished = into.with_suffix(".unfinished")
    command = ["go", "build", "-trimpath", f"-ldflags={_link_flags(folder)}", "-o", str(unfinished), package]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "CGO_ENABLED": "0"}, check=False)
    if done.returncode:
        raise NotBuilt(f"building {package} failed (reason above); try again: make programs")
    unfinished.rename(into)
    print(f"everstep: built {package} in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _cache(name: str) -> Path:
    modules = HERE / name
    digest = hashlib.sha256((modules / "go.mod").read_bytes() + (modules / "go.sum").read_bytes()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "everstep" / "programs" / f"{name}-{digest[:16]}"


def _tools(name: str) -> dict[str, str]:
    """Program → package. One alone is called as its folder, several by their packages."""
    text = (HERE / name / "go.mod").read_text()
    packages = re.findall(r"^(?:tool |\t)([^\s()]+)$", text, re.MULTILINE)
    assert packages, f"{name}/go.mod names no tool"
    return {name: packages[0]} if len(packages) == 1 else {package.split("/")[-1]: package for package in packages}


def _link_flags(folder: Path) -> str:
    """Kubernetes' programs have to know their version: they compare it with what they are asked to be compatible to."""
    version = re.search(r"^\s*k8s\.io/kubernetes v(\d+)\.(\d+)\.\S+", (folder / "go.mod").read_text(), re.MULTILINE)
    if version is None:
        return "-s -w"
    where = "k8s.io/component-base/version"
    stamps = {"gitVersion": version[0].split()[-1], "gitMajor": version[1], "gitMinor": version[2]}
    return " ".join(["-s -w", *(f"-X {where}.{key}={value}" for key, value in stamps.items())])


def _need_go(name: str) -> None:
    if shutil.which("go") is None:
        raise NotBuilt(f"building {name} needs Go 1.26 or newer on PATH; install it from your distribution")


def main() -> int:
    try:
        for name in sys.argv[1:] or NEEDED:
            for path in build(name):
                print(path)
    except NotBuilt as error:
        print(f"everstep: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
