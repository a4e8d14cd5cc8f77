"""How an attempt ends by an error of its own: a document for the agent, and one line or a stack trace for people."""

import os
import sys
import traceback
from pathlib import Path

from orchestrator.contract.attempt import OwnError
from orchestrator.store.objects import StoreError

PACKAGES = Path(__file__).resolve().parent.parent
OWN = ("trainer", "orchestrator")


def describe(error: BaseException, *, step: int | None) -> OwnError:
    """Type and innermost frame of our own code: the identity of an error, whatever its text says."""
    return OwnError(type=type(error).__name__, frame=_own_frame(error), message=_one_line(error), step=step)


def report(error: BaseException, *, step: int | None, document: str | None) -> None:
    """Write the document (a path; None: nobody wants it) and print.

    One line for what a person can mend, a stack trace for what is a bug.
    """
    described = describe(error, step=step)
    if document:
        partial = Path(f"{document}.partial")
        partial.write_bytes(described.to_bytes())
        os.replace(partial, document)
    if _is_for_people(error):
        print(f"everstep: {described.message}", file=sys.stderr)
    else:
        traceback.print_exception(error)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{text:.1000}" if _is_for_people(error) else f"{type(error).__name__}: {text:.1000}"


def _is_for_people(error: BaseException) -> bool:
    """Its text says all: a ContractError is a ValueError, and the errors that this package defines are such too."""
    return isinstance(error, (ValueError, StoreError)) or type(error).__module__.split(".")[0] in OWN


def _own_frame(error: BaseException) -> str:
    own = "?"
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(PACKAGES) and path.relative_to(PACKAGES).parts[0] in OWN:
            own = f"{path.relative_to(PACKAGES).as_posix()}:{frame.name}"
    return own
