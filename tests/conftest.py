"""What all tests share: seeds of simulations, time limits by folder, CPU devices, and where the time went."""

import os
import shutil
import sys
from collections import Counter

import hypothesis
import pytest

LOCAL_TIMEOUT = 600.0
"""Seconds for one test of real processes on a busy machine with two cores; other tests have pyproject's limit."""
OF_PROCESSES = ("tests/local", "tests/storage", "tests/cluster", "tests/tpu")
OF_PROGRAMS = ("tests/storage", "tests/cluster")
"""Their servers are built with Go (tests/programs)."""
SEEDS_A_TEST = 250
CPU_DEVICES = 8
"""Devices of the pytest process itself; trainers that tests start get theirs from their host's agent."""

hypothesis.settings.register_profile(
    "everstep",
    deadline=None,  # the first example may compile
    print_blob=True,
    derandomize="CI" in os.environ,
)
hypothesis.settings.load_profile("everstep")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("everstep")
    group.addoption("--seeds", type=int, default=2000, metavar="N", help="fault schedules to simulate (default 2000)")
    group.addoption("--first-seed", type=int, default=0, metavar="S", help="seed of the first one (default 0)")
    group.addoption("--exact-steps", type=int, default=20, metavar="N", help="of equal bits (default 20)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--seeds") < 1:
        raise pytest.UsageError("--seeds must be at least 1: a simulation of nothing proves nothing")
    if config.getoption("--exact-steps") < 20:
        raise pytest.UsageError("--exact-steps must be at least 20: the first steps hide differences")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``seeds`` runs once for each block of them, so that blocks can run on several cores."""
    if "seeds" not in metafunc.fixturenames:
        return
    first = metafunc.config.getoption("--first-seed")
    end = first + metafunc.config.getoption("--seeds")
    blocks = [range(start, min(start + SEEDS_A_TEST, end)) for start in range(first, end, SEEDS_A_TEST)]
    metafunc.parametrize("seeds", blocks, ids=[f"{block[0]}-{block[-1]}" for block in blocks])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _suite(item.nodeid) in OF_PROCESSES and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LOCAL_TIMEOUT))
        if _suite(item.nodeid) in OF_PROGRAMS and not _has_go():
            item.add_marker(pytest.mark.skip(reason="needs Go"))


def pytest_collection_finish() -> None:
    """Give this process its CPU devices before any test computes, and only if some test imports jax.

    Through jax's configuration, not its environment variables: those would reach the trainers that tests start.
    """
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", CPU_DEVICES)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    left_out = sorted({_suite(report.nodeid) for report in skipped} & {*OF_PROGRAMS})
    if left_out and not _has_go():
        terminalreporter.write_line(
            f"skipped {' and '.join(left_out)}: no Go 1.26 or newer on PATH to build their servers"
        )
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[_suite(report.nodeid)] += report.duration
    if seconds:
        spent = ", ".join(f"{suite} {total:.0f} s" for suite, total in sorted(seconds.items()))
        terminalreporter.write_line(f"where the time went: {spent}")


def _has_go() -> bool:
    return shutil.which("go") is not None


def _suite(nodeid: str) -> str:
    """``tests/unit``, ``tests/simulation``, …"""
    return "/".join(nodeid.split("/")[:2])
