"""What JAX's preemption service does with a SIGTERM, on which ``trainer.drain`` relies; in processes of their own."""

import subprocess
import sys
import textwrap

import pytest

from tests.local.attempts import LIMIT, REPOSITORY

PROCESS = """
import os, socket, sys, traceback
import jax
from jax._src import distributed
from jax.experimental import multihost_utils
from trainer.drain import Drain

def ask_and_wait_until_heard():
    '''Until the service has read the number of calls; the next call then waits until it has decided.'''
    drain.request()
    distributed.global_state.client.blocking_key_value_get("PREEMPTION_CURRENT_COUNTER/0", 60_000)

def test():
BODY

def connect():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    jax.distributed.initialize(address, 1, 0, cluster_detection_method="deactivate")

drain = Drain()
drain.listen()
try:
    test()
except BaseException:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)  # a normal exit without a shutdown can hang
jax.distributed.shutdown()
"""


def run(body: str) -> None:
    """``body`` must pass in a process of its own."""
    code = PROCESS.replace("BODY", textwrap.indent(textwrap.dedent(body), "    "))
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("calls_before", [0, 3])
def test_signal_is_agreed_on_at_the_next_call(calls_before: int) -> None:
    run(f"""
        connect()
        assert not any(drain.agreed() for _ in range({calls_before}))
        ask_and_wait_until_heard()
        assert [drain.agreed() for _ in range(10)] == [True] + [False] * 9
    """)


def test_signal_before_jax_listens_is_remembered_and_does_not_kill() -> None:
    run("""
        drain.request()
        connect()
        assert drain.asked_early
    """)


def test_service_would_never_agree_with_a_trainer_that_counts_global_steps() -> None:
    """The reason for counting calls. When this fails, JAX has changed, and ``trainer.drain`` may become simpler."""
    run("""
        connect()
        ask_and_wait_until_heard()
        assert not any(multihost_utils.reached_preemption_sync_point(step) for step in range(500, 600))
    """)
