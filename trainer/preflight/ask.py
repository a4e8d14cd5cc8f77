"""Asking the compiler, each question once: answers are kept by all that decides them."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.contract.base import ContractError
from orchestrator.contract.preflight import CompileAnswer, CompileQuestion


def ask(
    question: CompileQuestion, *, kept: Path, software: Mapping[str, str], texts: Path | None = None
) -> CompileAnswer:
    """From the folder ``kept``, or from a process that compiles; it ends with this one.

    Args:
        software: versions and sources of all that compiles.
        texts: a folder for the compiled programs' texts; None: they are not kept.

    Raises:
        ContractError: the question cannot be asked, or the compiler's process died.
    """
    file = kept / f"{_key(question, software)}.json"
    text = None if texts is None else texts / f"{file.stem}.hlo"
    if file.is_file() and (text is None or text.is_file()):
        return CompileAnswer.from_bytes(file.read_bytes(), where=str(file))
    found = _compiled(question, text)
    kept.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_bytes(found.to_bytes())
    unfinished.rename(file)
    return found


def _key(question: CompileQuestion, software: Mapping[str, str]) -> str:
    body = question.to_bytes() + json.dumps(dict(software), sort_keys=True).encode()
    return hashlib.sha256(body).hexdigest()[:32]


def _compiled(question: CompileQuestion, text: Path | None) -> CompileAnswer:
    from trainer.preflight.compile import clean

    command = [sys.executable, "-P", "-m", "trainer.preflight.compile"]
    command += [] if text is None else ["--text", str(text)]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean(os.environ),
        start_new_session=True,
    )
    try:
        said, errors = child.communicate(question.to_bytes())
    finally:
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if child.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise ContractError(last.removeprefix("everstep: ") if child.returncode == 2 else _died(question, child, last))
    return CompileAnswer.from_bytes(said, where="the compiler's answer")


def _died(question: CompileQuestion, child: "subprocess.Popen[bytes]", last: str) -> str:
    how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit {child.returncode}"
    return f"{question.topology}: stage {question.stage.name}: the compiler's process ended by {how}: {last}"
