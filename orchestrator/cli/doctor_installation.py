"""What ``everstep doctor`` checks of Python, packages and limits."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata

from orchestrator.cli.doctor_finding import Finding, Machine, ok, problem, warning

OWN_TRAINER = "trainer.train"
"""The module of Everstep's own trainer."""
OLDEST_PYTHON = (3, 11)
OPEN_FILES = (256, 1024)
"""Soft limits below which something will not work, and below which a large fleet will not."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)>=([0-9.]+)(?:; extra == ['\"]([a-z]+)['\"])?")


def installation(machine: Machine, *, trainers: Sequence[Sequence[str]]) -> list[Finding]:
    """``trainers``: commands that runs start their trainer with; none: Everstep's own, with this Python."""
    found = [_python(machine), _open_files(machine)]
    try:
        requirements = machine.requirements()
    except metadata.PackageNotFoundError:
        what = "everstep is not installed as a package here, so the versions that it needs are not known"
        return [*found, warning("packages", what, remedy="pip install . (in its folder)")]
    found.append(_packages("packages", machine, machine.interpreter(), _wanted(requirements, extra="")))
    for command in dict.fromkeys(map(tuple, trainers or [(machine.interpreter(), OWN_TRAINER)])):
        if OWN_TRAINER in command:
            found.append(_packages("trainer packages", machine, command[0], _wanted(requirements, extra="trainer")))
        elif shutil.which(command[0]) is None:
            remedy = "install it, or correct `trainer` in run.yaml and submit again"
            found.append(problem("trainer", f"{command[0]}: no such command", remedy=remedy))
        else:
            found.append(ok("trainer", f"{' '.join(command)} is not Everstep's; what it needs is not known"))
    return found


def _python(machine: Machine) -> Finding:
    version = machine.python()
    if _numbers(version)[:2] < OLDEST_PYTHON:
        oldest = ".".join(str(part) for part in OLDEST_PYTHON)
        return problem("python", f"{version} is older than {oldest}", remedy=f"use Python {oldest} or newer")
    return ok("python", version)


def _open_files(machine: Machine) -> Finding:
    limit, (least, enough) = machine.open_files(), OPEN_FILES
    if limit >= enough:
        return ok("open files", f"limit {limit:,}")
    remedy = f"ulimit -n {enough} before the controller is started"
    make = problem if limit < least else warning
    return make("open files", f"limit {limit:,}; {enough:,} are enough for any fleet", remedy=remedy)


def _packages(check: str, machine: Machine, interpreter: str, wanted: Mapping[str, str]) -> Finding:
    try:
        versions = machine.installed(interpreter)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return problem(check, f"{interpreter} does not say what it has: {error}", remedy="name a Python that runs")
    lacking = [
        f"{name} {versions.get(name) or 'missing'} (needs {least} or newer)"
        for name, least in wanted.items()
        if name not in versions or _numbers(versions[name]) < _numbers(least)
    ]
    if lacking:
        extra = "[trainer]" if check == "trainer packages" else ""
        remedy = f"{interpreter} -m pip install 'everstep{extra}' as in README, Install"
        return problem(check, f"{', '.join(lacking)} in {interpreter}", remedy=remedy)
    return ok(check, ", ".join(f"{name} {versions[name]}" for name in wanted))


def _wanted(requirements: Sequence[str], *, extra: str) -> dict[str, str]:
    """Oldest versions by package, of what everybody needs (``extra`` empty) or of an extra."""
    found = [match.groups(default="") for match in map(_REQUIREMENT.fullmatch, requirements) if match]
    return {name.lower(): least for name, least, needed_for in found if needed_for == extra}


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 10, 2) of 0.10.2rc1."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
