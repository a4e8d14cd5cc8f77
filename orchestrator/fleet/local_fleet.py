"""A fleet whose hosts are processes of one machine: what its ``fleet.yaml`` says."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import ContractError, Document, Part
from orchestrator.contract.recipe import Name, Positive

MOST_HOSTS = 1024


class LocalPool(Part):
    """Equal hosts that stand for one TPU slice or several."""

    name: Name
    generation: Name
    hosts: Annotated[int, Field(gt=0, le=MOST_HOSTS)]
    devices_per_host: Annotated[int, Field(gt=0, le=64)]
    threads_per_host: Positive | None = None
    """Threads in which XLA computes on a host; None: as many as the machine has. It is part of the numerics
    fingerprint, so pools between which bits shall be equal have the same number."""

    def refs(self) -> tuple[HostRef, ...]:
        return tuple(HostRef(pool=self.name, host=f"h{index}") for index in range(self.hosts))


class LocalFleet(Document):
    """All pools of a fleet."""

    KIND: ClassVar[str] = "fleet"

    pools: Annotated[tuple[LocalPool, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [pool.name for pool in self.pools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"pools: two are named {twice!r}; rename one")
        return self

    @classmethod
    def described_by(cls, fields: Any, *, where: str) -> Self:
        """Check parsed YAML.

        Raises:
            ContractError: names file, field and remedy.
        """
        if not isinstance(fields, dict):
            raise ContractError(f"{where}: expected 'pools:' with at least one pool, found {fields!r:.60}")
        return cls.from_fields(fields, where=where)

    def pool(self, name: str) -> LocalPool | None:
        return next((pool for pool in self.pools if pool.name == name), None)
