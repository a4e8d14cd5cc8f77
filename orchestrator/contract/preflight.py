"""What the compiler says of a placement before anybody holds it: the question, the answer, the report of several."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from orchestrator.contract.base import Document, Part
from orchestrator.contract.names import Generation, Sides
from orchestrator.contract.recipe import Model, Name, Positive, Stage

Count = Annotated[int, Field(ge=0)]


class Topology(Part):
    """Slices of TPUs: ``tpu7x:4x8x8``, or ``2*tpu7x:4x4x4`` for two of them."""

    generation: Generation
    chips: Sides
    """Of one slice: ``4x8x8``."""
    slices: Positive = 1

    def __str__(self) -> str:
        times = f"{self.slices}*" if self.slices > 1 else ""
        return f"{times}{self.generation}:{self.chips}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError: it is not written like that."""
        times, _, rest = text.rpartition("*")
        generation, _, chips = rest.partition(":")
        return cls(generation=generation, chips=chips, slices=int(times or 1))


class CompileQuestion(Document):
    """Compile the step of this stage, with these settings of a leaf plan, for these slices."""

    KIND: ClassVar[str] = "compile-question"

    model: Model
    stage: Stage
    topology: Topology
    settings: dict[str, Any]


class Collectives(Part):
    """All collectives of a kind and dtype in one step of one device."""

    kind: str
    dtype: str
    asynchronous: bool
    """Started and awaited apart, so that something else can be computed meanwhile."""
    count: Count
    bytes: Count
    """Of their results."""


class Unit(Part):
    """Float arithmetic as the compiler scheduled it; equal keys, equal operations, shapes, layouts and tiles."""

    key: str
    count: Positive
    label: str
    """Where it comes from, and its shape."""


class Compiled(Part):
    """A step that fits. Bytes, FLOPs and cycles are of one step on one device."""

    kind: Literal["compiled"] = "compiled"
    argument_bytes: Count
    temporary_bytes: Count
    peak_bytes: Count
    """The compiler's own figure for the most that is held at a time."""
    flops: Count
    """Of matrix products, attention's kernels included: what is computed again counts again."""
    model_flops: Count
    """Of the model: what would do if nothing were computed again."""
    cycles: Count
    """The compiler's estimates, added up; its kernels and collectives have none. For comparisons only."""
    collectives: tuple[Collectives, ...]
    units: tuple[Unit, ...]
    leaf_sha256: str
    """Over the units."""


class Refused(Part):
    """A step that the compiler would not make."""

    kind: Literal["refused"] = "refused"
    reason: str
    """The first line of what the compiler said."""
    out_of_memory: bool


class CompileAnswer(Document):
    """What came of it."""

    KIND: ClassVar[str] = "compile-answer"

    devices: Positive
    micro_steps: Positive
    seconds: Annotated[float, Field(ge=0)]
    """The compiler took."""
    versions: dict[str, str]
    sources: str
    """SHA-256 over the parts of the trainer that compute."""
    outcome: Annotated[Compiled | Refused, Field(discriminator="kind")]


class PlacementReport(Part):
    """What is known of a placement for a stage under the leaf plan of its generation."""

    topology: Topology
    stage: Name
    answer: CompileAnswer
    bits: Literal["reference", "equal", "bounded", "unknown"]
    """Against the first placement of the stage: ``equal``, every unit is the same, so bits will hold; ``bounded``, some
    are not; ``unknown``, one of the two did not compile."""
    equal_units: Count
    units: Count
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]


class PreflightReport(Document):
    """Leaf plans by generation, and each placement under them."""

    KIND: ClassVar[str] = "preflight-report"

    recipe: str
    at: float
    """Seconds since the epoch."""
    settings: dict[str, dict[str, Any]]
    """Of a leaf plan, by generation."""
    placements: tuple[PlacementReport, ...]

    @field_validator("placements")
    @classmethod
    def _not_empty(cls, value: tuple[PlacementReport, ...]) -> tuple[PlacementReport, ...]:
        if not value:
            raise ValueError("a report without a placement")
        return value
