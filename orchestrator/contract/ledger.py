"""The ledger: what each step computed, as bits.

One record a step, one JSON object a line, in closed segments that are created once. Floats are written as the eight
hexadecimal digits of their fp32 bits, so that nothing is lost or rounded on the way.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from orchestrator.contract.base import ContractError, Part, first_problem
from orchestrator.contract.recipe import Sha256

Bits = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]
Words = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
"""Two 32-bit words of a checksum."""


def bits_of(value: float) -> str:
    """The fp32 bits of a number as eight hexadecimal digits."""
    return struct.pack(">f", value).hex()


def float_of(bits: str) -> float:
    """The number whose fp32 bits these are."""
    return float(struct.unpack(">f", bytes.fromhex(bits))[0])


class Fingerprint(Part):
    """What must be equal for two records to be held to the same bits."""

    numerics: Sha256
    leaf: Sha256

    @property
    def key(self) -> str:
        return f"{self.numerics}:{self.leaf}"


class Record(Part):
    """One step: it takes ``next_step`` from ``step`` to ``step + 1``."""

    step: Annotated[int, Field(ge=0, lt=2**63)]
    attempt: Annotated[int, Field(gt=0, lt=2**63)]
    ce: Bits
    z_loss: Bits
    total: Bits
    ce_by_rank: tuple[Bits, ...]
    """By virtual rank, 0 … V - 1."""
    grad_norm: Bits
    """Before clipping."""
    gradient: Words
    """Checksum of the reduced gradient."""
    tokens: Words
    """Checksum of the token ids on the devices, keyed by virtual rank and position."""
    learning_rate: Bits
    skipped: bool
    finite: bool
    fingerprint: str
    """``numerics:leaf`` of the program that computed it."""
    started: float
    """Seconds since the epoch."""
    seconds: float
    """From the batch's request to the metrics on the host."""
    data_seconds: float = 0.0
    """Of these, until the batch was on the devices of the process that records; 0 in records that do not say."""

    def differs_from(self, other: "Record") -> tuple[str, ...]:
        """Names of the computed fields whose bits differ; times do not count."""
        return tuple(field for field in COMPUTED if getattr(self, field) != getattr(other, field))


COMPUTED = (
    "ce",
    "z_loss",
    "total",
    "ce_by_rank",
    "grad_norm",
    "gradient",
    "tokens",
    "learning_rate",
    "skipped",
    "finite",
)


_REMEDY = (
    "the ledger segment is damaged: restore the file from a copy; without one, move it out of the run's folder, and "
    "its steps count as not recorded"
)


def to_lines(records: Iterable[Record]) -> bytes:
    """A segment's bytes."""
    return "".join(json.dumps(record.model_dump(mode="json"), sort_keys=True) + "\n" for record in records).encode()


def from_lines(data: bytes, *, where: str) -> Iterator[Record]:
    """The records of a closed segment.

    A segment is created whole, so one that is empty or ends within a line was damaged by the storage. Nobody guesses
    what it held: it is read whole or not at all.

    Raises:
        ContractError: a line that is not a whole record.
    """
    if not data:
        raise ContractError(f"{where}: empty; {_REMEDY}")
    *lines, rest = data.split(b"\n")
    if rest:
        raise ContractError(f"{where}:{len(lines) + 1}: torn: the last line has no end; {_REMEDY}")
    for number, line in enumerate(lines, 1):
        try:
            yield Record.model_validate_json(line)
        except ValidationError as error:
            raise ContractError(f"{where}:{number}: {first_problem(error)}; {_REMEDY}") from error
