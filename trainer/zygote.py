"""Warm start: a process that has imported everything and does nothing but fork trainers.

    python -m trainer.zygote --socket FD trainer.train      (a host agent starts it)

Importing JAX and the trainer takes most of a fresh start. This process does it once; each attempt is then a fork that
begins at the trainer's ``main``. A fork copies one thread only, so it is safe while there is only one and no JAX
backend is up; both are looked at before each fork, and a start that would be unsafe is refused, so that the agent
starts a fresh interpreter instead.

The talk is JSON, one message a packet: ``{"ready": {...}}`` once, then for each
``{"start": {"arguments": [...], "environment": {...}}}``, which carries the trainer's output as a descriptor, one of
``{"pid": n}`` or ``{"refused": why}``. The trainer is forked twice, so that it becomes the child of the agent, which
adopts orphans: the agent waits for it as for any other trainer, and it lives on if the zygote dies.
"""

import argparse
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PRELOADED = ("jax.experimental.multihost_utils", "trainer.attempt")
"""What a trainer imports only after it has started, so that it is heard early when it starts cold."""
LONGEST_MESSAGE = 1 << 20
GO = b"1"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Start:
    """A trainer to fork."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    output: int
    """Descriptor for its standard output and error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the agent hangs up. In a trainer it returns what the trainer returns."""
    options = _parser().parse_args(arguments)
    agent = os.getppid()
    began = time.monotonic()
    module = importlib.import_module(options.module)
    for name in options.preload if options.preload is not None else PRELOADED:
        importlib.import_module(name)
    prewarm_jax()
    gc.collect()
    gc.freeze()  # what is imported stays shared with the trainers
    unsafe = why_unsafe()
    if unsafe is not None:
        print(f"everstep: no warm starts: {unsafe}", file=sys.stderr)
        return 1
    with socket.socket(fileno=options.socket) as talk:
        talk.send(_message(ready={"threads": _threads(), "seconds": round(time.monotonic() - began, 3)}))
        start = serve(talk)
    if start is None:
        return 0
    return run_trainer(module.main, module.__file__, start, agent=agent)


def prewarm_jax() -> None:
    """JAX's one-time costs that need no backend: the MLIR dialects and a first trace. Nothing without JAX."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return
    mlir = importlib.import_module("jax._src.interpreters.mlir")
    mlir.make_ir_context()
    jax.make_jaxpr(lambda x: x + 1)(jax.ShapeDtypeStruct((2,), "float32"))


def why_unsafe() -> str | None:
    """Why a fork now could hang or crash; None when it cannot."""
    if _threads() != 1:
        return f"the zygote has {_threads()} threads instead of one (is OPENBLAS_NUM_THREADS=1 set?)"
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        return "a JAX backend is up in the zygote"
    return None


def serve(talk: socket.socket) -> Start | None:
    """Fork a trainer for each start. Returns in a trainer, with what it shall do; None: the agent hung up."""
    while True:
        data, outputs, _, _ = socket.recv_fds(talk, LONGEST_MESSAGE, 1)
        if not data:
            return None
        asked = json.loads(data)["start"]
        start = Start(tuple(asked["arguments"]), asked["environment"], outputs[0])
        unsafe = why_unsafe()
        if unsafe is not None:
            talk.send(_message(refused=unsafe))
        elif _fork_trainer(talk):
            return start
        os.close(start.output)


def run_trainer(trainer: Callable[[], int | None], file: str | None, start: Start, *, agent: int) -> int:
    """Become what a fresh interpreter would be, then run the trainer."""
    os.setsid()
    _die_with(agent)
    os.dup2(start.output, 1)
    os.dup2(start.output, 2)
    os.close(start.output)
    os.environ.update(start.environment)
    sys.argv = [file or "", *start.arguments]
    return trainer() or 0


def _fork_trainer(talk: socket.socket) -> bool:
    """True in the trainer. It goes on only after the agent has become its parent and was told its pid."""
    pid_reader, pid_writer = os.pipe()
    go_reader, go_writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        trainer = os.fork()
        if trainer != 0:
            os.write(pid_writer, str(trainer).encode())
            os._exit(0)
        for handle in (pid_reader, pid_writer, go_writer):
            os.close(handle)
        if os.read(go_reader, 1) != GO:
            os._exit(1)  # the zygote died, and the agent does not know this process
        os.close(go_reader)
        return True
    os.close(pid_writer)
    os.close(go_reader)
    pid = int(os.read(pid_reader, 32))
    os.waitpid(middle, 0)  # from now on the agent is the trainer's parent
    os.close(pid_reader)
    talk.send(_message(pid=pid))
    os.write(go_writer, GO)
    os.close(go_writer)
    return False


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _threads() -> int:
    """Threads of this process as the kernel counts them: libraries start some that Python does not know."""
    return len(os.listdir("/proc/self/task"))


def _message(**content: object) -> bytes:
    return json.dumps(content).encode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.zygote", description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="inherited descriptor of the talk with the agent")
    parser.add_argument("--preload", action="append", metavar="MODULE", help="imported too (default: the trainer's)")
    parser.add_argument("module", help="the trainer; its main() is run in each fork")
    return parser


if __name__ == "__main__":
    sys.exit(main())
