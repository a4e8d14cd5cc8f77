"""The documents of one attempt: what the trainer is told, what agents and trainers say back.

A trainer is any command that reads the AttemptSpec whose path is in ``EVERSTEP_ATTEMPT`` and its own index in
``EVERSTEP_PROCESS``, keeps the documents of the store, and ends with one of the exit codes below.
"""

from enum import IntEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from orchestrator.contract.base import Document, Part
from orchestrator.contract.names import Address, AllocationName, Argument, Location, ManifestName, ObjectName
from orchestrator.contract.recipe import Name, Positive, Sha256
from orchestrator.contract.run import CheckpointPolicy, LeafPlan, Placement

ATTEMPT_VARIABLE = "EVERSTEP_ATTEMPT"
"""Environment variable: path of the AttemptSpec as a local file."""
PROCESS_VARIABLE = "EVERSTEP_PROCESS"
"""Environment variable: index of this host among the attempt's hosts, 0 …"""
ERROR_VARIABLE = "EVERSTEP_ERROR"
"""Environment variable: path where the trainer may leave an OwnError before it exits with 1."""

Phase = Literal["start", "initialise", "compile", "restore", "replay", "train", "drain", "end"]
"""In this order; ``replay`` is skipped when nothing was recorded beyond the resume point."""


class ExitCode(IntEnum):
    """What a trainer's exit status says. Anything else: it died."""

    LAST_STEP_COMMITTED = 0
    OWN_ERROR = 1
    DRAINED = 80
    DRAINED_NOTHING_NEW = 81
    DRAIN_SAVE_FAILED = 82
    REPLAY_DIFFERS = 83
    NOT_FINITE = 84


CLEAN_EXITS = (ExitCode.LAST_STEP_COMMITTED, ExitCode.DRAINED, ExitCode.DRAINED_NOTHING_NEW)
"""The trainer left as it should: it is neither a cause nor an echo of one."""


class HostRef(Part):
    """A host of a fleet."""

    pool: Name
    host: Name

    def __str__(self) -> str:
        return f"{self.pool}/{self.host}"


class Segment(Part):
    """A closed ledger segment of an earlier attempt that counts for replay."""

    attempt: Positive
    name: ObjectName
    """Inside the run."""
    length: Annotated[int, Field(ge=0)]
    sha256: Sha256
    first_step: int
    last_step: int


class AttemptSpec(Document):
    """One launch of the trainer, immutable."""

    KIND: ClassVar[str] = "attempt"

    run: Name
    attempt: Positive
    revision: Positive
    recipe_sha256: Sha256
    store: Location
    """The object store: an absolute path (or gs:// address) that every host can reach."""
    data_root: Location
    stage: Name
    until_step: Positive
    """``next_step`` at which this attempt is done: the end of the stage."""
    allocation: AllocationName
    """``<run>-g<K>``."""
    placement: Placement
    hosts: Annotated[tuple[HostRef, ...], Field(min_length=1)]
    """Process i runs on hosts[i]."""
    leaf_plan: LeafPlan
    resume: ManifestName | None
    """Name of the manifest to start from (newest first, older ones are tried after it); None only for attempts
    before the first commit, which initialise."""
    prior: tuple[Segment, ...] = ()
    """Records of earlier attempts of this revision at and beyond the resume point."""
    checkpoint: CheckpointPolicy
    witness_steps: Annotated[int, Field(ge=0)] = 2
    comparison: Literal["bitwise", "bounded"] = "bitwise"
    loss_bound: float = 0.0
    """For ``bounded``: |Δ loss| allowed between unequal fingerprints."""
    trainer: tuple[Argument, ...]


class StartOrder(Document):
    """Tells the agents of ``hosts`` to start their trainer for an attempt. Create-only."""

    KIND: ClassVar[str] = "order"

    attempt: Positive
    hosts: tuple[HostRef, ...]
    """Process i runs on hosts[i]."""
    at: float


class StopOrder(Document):
    """Tells the agents to end an attempt: ``drain`` asks the trainer, ``kill`` does not. Create-only, one of each."""

    KIND: ClassVar[str] = "stop"

    attempt: Positive
    how: Literal["drain", "kill"]
    reason: str
    at: float


class ProfileOrder(Document):
    """Asks an attempt's trainers to trace steps ``first_step`` … ``last_step``. Replaced by compare-and-swap; a trainer
    that cannot trace leaves it alone."""

    KIND: ClassVar[str] = "profile"

    attempt: Positive
    first_step: Annotated[int, Field(ge=0)]
    last_step: Annotated[int, Field(ge=0)]
    by: str
    reason: str
    at: float

    @property
    def steps(self) -> str:
        """``100..105``, as a person asks for them."""
        return f"{self.first_step}..{self.last_step}"

    @property
    def folder(self) -> str:
        """Inside the run: ``host-NNN/`` of each process below it."""
        return f"profiles/{self.first_step:012d}-{self.last_step:012d}-a{self.attempt:04d}"


class Rendezvous(Document):
    """Where process 0 listens for the others. Create-only."""

    KIND: ClassVar[str] = "rendezvous"

    address: Address


class PhaseStart(Part):
    phase: Phase
    at: float
    """Seconds since the epoch, the host's clock."""


class Progress(Document):
    """Where a trainer is; overwritten every few seconds."""

    KIND: ClassVar[str] = "progress"

    attempt: Positive
    process: Annotated[int, Field(ge=0)]
    pid: int
    phase: Phase
    step: int | None
    """The last step that was computed; None before the first."""
    counter: int
    """Rises with every step and phase; never with time alone."""
    phases: tuple[PhaseStart, ...]
    first_new_step_at: float | None = None
    step_seconds: float | None = None
    """Median of the last steps."""
    compile_cache: Literal["hit", "miss", "off"] | None = None
    save_error: str | None = None
    """The newest failed save, in one line; the run goes on."""
    save_failures: int = 0
    skipped: tuple[int, ...] = ()
    """Steps that were not applied because they were outliers: the newest ones of this attempt, in order."""
    at: float


class Started(Document):
    """An agent's word that it has started a trainer. Create-only."""

    KIND: ClassVar[str] = "started"

    attempt: Positive
    process: Annotated[int, Field(ge=0)]
    host: HostRef
    pid: int
    at: float


class OwnError(Document):
    """An error of the trainer itself, identified by its type and the innermost frame of the trainer's own code."""

    KIND: ClassVar[str] = "error"

    type: str
    frame: str
    """``file:function``, without a line number, so that an edit elsewhere does not make it another error."""
    message: str
    step: int | None = None


class Exit(Document):
    """An agent's word that a trainer has ended and was reaped. Create-only."""

    KIND: ClassVar[str] = "exit"

    attempt: Positive
    process: Annotated[int, Field(ge=0)]
    host: HostRef
    code: int | None
    """Exit status; None when a signal ended it, or when it never started."""
    signal: int | None
    killed_by_us: bool
    """The agent sent SIGKILL because it was told to."""
    phase: Phase | None
    step: int | None
    error: OwnError | None
    last_lines: tuple[str, ...]
    """At most 200."""
    at: float
