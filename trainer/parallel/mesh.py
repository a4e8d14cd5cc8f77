"""Devices in a row, virtual ranks on them, and which part of each array a device holds.

Virtual rank v = i · P + d is the i-th micro-step on device d. Micro-step i of all devices is thus the aligned block
[i·P, (i+1)·P) of the ranks: what devices sum among themselves is the low part of one pairwise tree over v, what a
device sums over its micro-steps is the high part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from orchestrator.contract.recipe import is_power_of_two

AXIS = "d"
"""The one mesh axis: data-parallel devices, over which weights and optimizer state are cut too."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """V virtual ranks on P devices."""

    virtual: int
    devices: int
    slices: int = 1
    """Of equal size; devices of one stand next to each other, so that the tree is inside slices first, then across."""

    def __post_init__(self) -> None:
        if not is_power_of_two(self.devices) or self.devices > self.virtual:
            raise ValueError(
                f"{self.devices} devices cannot carry {self.virtual} virtual ranks: P must be a power of two ≤ V; "
                "choose another placement"
            )
        if not is_power_of_two(self.slices) or self.slices > self.devices:
            raise ValueError(f"{self.devices} devices cannot be {self.slices} slices: use a power of two of them")

    @property
    def micro_steps(self) -> int:
        """n = V / P: leaves that each device computes one after the other."""
        return self.virtual // self.devices

    def rows_of(self, device: int, *, rows_per_rank: int) -> NDArray[np.int64]:
        """Rows of the global batch that a device reads, [micro_steps, rows_per_rank]."""
        ranks = np.arange(self.micro_steps, dtype=np.int64) * self.devices + device
        return ranks[:, None] * rows_per_rank + np.arange(rows_per_rank)


def make_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """One axis over the devices, in the order of their processes."""
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(ordered), (AXIS,))


def cut_spec(rank: int, cut: int | None) -> PartitionSpec:
    """An array of ``rank`` axes, cut over the devices along one axis (from the end), or replicated (None)."""
    if cut is None:
        return PartitionSpec()
    return PartitionSpec(*(AXIS if axis == rank + cut else None for axis in range(rank)))


def sharding(mesh: Mesh, spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(mesh, spec)


def cut_axis(spec: PartitionSpec) -> int | None:
    """The axis that a spec cuts; None: replicated."""
    return next((axis for axis, name in enumerate(spec) if name == AXIS), None)
