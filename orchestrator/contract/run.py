"""A run and its policy: what may change while the bits stay the same."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from orchestrator.contract.base import Document, Part
from orchestrator.contract.names import Argument, Location, ManifestName, ZygoteModules
from orchestrator.contract.recipe import Name, Positive, Recipe, Sha256, is_power_of_two

Seconds = Annotated[float, Field(ge=0)]


class Placement(Part):
    """Where an attempt may run: a generation of accelerator, a slice shape, a number of slices."""

    name: Name
    pool: Name
    generation: Name
    hosts: Positive
    """Hosts over all slices; each is one operating-system process of the job."""
    devices_per_host: Positive
    slices: Positive = 1
    stages: tuple[Name, ...] | None = None
    """Stages that this placement serves; None: all."""

    @property
    def devices(self) -> int:
        """P: data-parallel devices."""
        return self.hosts * self.devices_per_host

    def serves(self, stage_name: str) -> bool:
        return self.stages is None or stage_name in self.stages


class CheckpointPolicy(Part):
    """When to save, what to keep."""

    every_steps: Positive = 1000
    keep_newest: Positive = 3
    keep_proven: Positive = 2
    keep_every: Positive | None = None
    """Keep each checkpoint whose next_step is a multiple of this; None: none for that reason."""
    prove_after: Positive = 2
    """Unproven checkpoints after which the newest is read back (scrubbed) beside the run."""
    max_unproven: Positive = 4
    """Intervals without a newly proven checkpoint after which the run is drained and held."""


class Deadlines(Part):
    """How long each phase of a launch may take, in seconds, before it counts as stalled."""

    start: Seconds = 300.0
    initialise: Seconds = 300.0
    compile: Seconds = 1800.0
    restore: Seconds = 1800.0
    drain: Seconds = 600.0
    kill: Seconds = 15.0
    """After a kill order, how long to wait for hosts to be confirmed free before doing without them."""
    stall_floor: Seconds = 30.0
    stall_factor: Annotated[float, Field(ge=1)] = 10.0
    """A run is stalled when no step rose for max(stall_floor, stall_factor x the median step)."""


class Budgets(Part):
    """How often a cause may repeat before its consequence."""

    own_error_repeats: Positive = 2
    """The same own error (type and frame) this often at one step holds the run."""
    host_failures: Positive = 3
    """Failures of one host within ``failure_window`` without a newly proven checkpoint before it is left alone."""
    failure_window: Seconds = 3600.0
    back_off: Seconds = 1800.0
    max_back_off: Seconds = 8 * 3600.0


class Moves(Part):
    """How eager voluntary moves to a better placement are."""

    hold_off: Seconds = 600.0
    """A better placement must have been whole this long."""
    failed_within: Seconds = 2 * 3600.0
    """A return that ends within this time was a failure and doubles the hold-off."""
    max_hold_off: Seconds = 6 * 3600.0
    per_day: Annotated[int, Field(ge=0)] = 4
    wait_for_preferred: Seconds = 0.0
    """How long to wait for the preferred placement when nothing runs, before a lesser one is used."""


class Policy(Document):
    """What a person may change on a live run; replaced by compare-and-swap, each change an event."""

    KIND: ClassVar[str] = "policy"

    placements: Annotated[tuple[Placement, ...], Field(min_length=1)]
    """In order of preference."""
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    deadlines: Deadlines = Deadlines()
    budgets: Budgets = Budgets()
    moves: Moves = Moves()
    comparison: Literal["bitwise", "bounded"] = "bitwise"
    """What is asked of replays between different leaf plans; equal ones are always held to every bit."""
    loss_bound: Annotated[float, Field(ge=0)] = 1e-2
    """For ``bounded``: |Δ loss| allowed a step between different fingerprints."""
    witness_steps: Annotated[int, Field(ge=0)] = 2
    """Steps a drained attempt runs beyond its drain checkpoint, so that the move can be proven."""
    prepare: bool = True
    """Compile, beside the run and at low priority, for the placements that may come next."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [placement.name for placement in self.placements]
        if len(set(names)) != len(names):
            raise ValueError(f"placements: two have the same name ({', '.join(names)})")
        return self

    def placement_named(self, name: str) -> Placement | None:
        return next((placement for placement in self.placements if placement.name == name), None)

    def legal_for(self, recipe: Recipe, stage_name: str) -> tuple[Placement, ...]:
        """Placements that may run a stage, in order of preference: P is a power of two and at most V."""
        ranks = recipe.stage_named(stage_name).virtual_ranks
        return tuple(
            placement
            for placement in self.placements
            if placement.serves(stage_name) and is_power_of_two(placement.devices) and placement.devices <= ranks
        )


class LeafPlan(Document):
    """How a generation computes a leaf. Its settings mean something to the trainer only."""

    KIND: ClassVar[str] = "leaf-plan"

    generation: Name
    settings: dict[str, Any] = Field(default_factory=dict)


class LeafPlanCheck(Document):
    """A question to the trainer, on its standard input: does it take these leaf plans for this recipe, and the recipe's
    initial weights? It answers 0, or 2 with what is wrong, in a line each, on standard output."""

    KIND: ClassVar[str] = "leaf-plan-check"

    recipe: Recipe
    plans: tuple[LeafPlan, ...]
    stages: dict[Name, tuple[Name, ...]]
    """Stages that each generation's placements may run."""
    data_root: Location


class Run(Document):
    """One training job from submit to its last step."""

    KIND: ClassVar[str] = "run"

    name: Name
    recipe_sha256: Sha256
    """Of revision 1."""
    backend: Literal["local"] = "local"
    fleet: Location
    """For the local backend: the folder of its fleet."""
    data_root: Location
    trainer: Annotated[tuple[Argument, ...], Field(min_length=1)]
    """The trainer's command; the agent starts it once for each host of an attempt."""
    scrub: tuple[Argument, ...] = ()
    """The command that reads a checkpoint back and writes its proof; called with --store, --run and --manifest. Empty:
    checkpoints are proven by restores only, and the last one by none."""
    check: tuple[Argument, ...] = ()
    """The command that answers a ``leaf-plan-check``; empty: leaf plans are not checked before the trainer has them."""
    prepare: tuple[Argument, ...] = ()
    """The command that compiles for a placement before it is needed; called with --store, --run, --revision, --stage
    and --placement. Empty: nothing is compiled ahead."""
    zygote: ZygoteModules | None = None
    """``<module>:<trainer module>``: agents start the module once and let it fork trainers whose command is
    ``python -m <trainer module>``; None: every trainer starts in a fresh interpreter."""
    submitted_at: float
    """Seconds since the epoch."""
    by: str = ""


class Revision(Document):
    """A numbered recipe of a run: revision 1 is what was submitted, each later one was asked for by a person."""

    KIND: ClassVar[str] = "revision"

    number: Positive
    recipe_sha256: Sha256
    base_manifest: ManifestName | None
    """The manifest that this revision goes on from; None for revision 1."""
    from_step: Annotated[int, Field(ge=0)]
    reason: str
    by: str
    at: float
