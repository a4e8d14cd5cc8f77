"""The faults of a soak: what a person types for each, and their order by chance.

Only such faults as a run survives without a person are here. A torn ledger or manifest needs one, a full disk needs a
file system of its own, and clocks jump in tests/simulation, where they can.
"""

from dataclasses import dataclass
from random import Random

Command = tuple[str, ...]
"""Words after ``everstep``; ``{host}`` is one that runs the attempt, ``{run}`` the run."""

SLOW_SECONDS = 1.5
"""Of the faults that last."""
FEWEST_STEPS, MOST_STEPS = 5, 25
"""New steps between two faults; a checkpoint is due every 20."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault."""

    commands: tuple[Command, ...]
    relaunches: bool = True
    """It ends the attempt; what comes next waits for the one after it."""
    undone_by: Command | None = None
    """Typed when the next attempt trains."""


_KILL = ("drill", "kill-host", "{host}")
KINDS = {
    "kill-host": Kind(commands=(_KILL,)),
    "agent-lost": Kind(commands=(("drill", "agent-lost", "{host}"),)),
    "stop-host": Kind(commands=(("drill", "stop-host", "{host}"),)),
    "slow-host": Kind(commands=(("drill", "slow-host", "{host}", "--seconds", str(SLOW_SECONDS)),), relaunches=False),
    "controller-lost": Kind(commands=(("drill", "controller-lost", "{run}"), ("submit", "run.yaml")), relaunches=False),
    "shrink": Kind(commands=(("drill", "shrink", "main", "--keep", "1"),), undone_by=("drill", "grow", "main")),
    "maintenance": Kind(
        commands=(("drill", "maintenance", "{host}", "--in", "30"),),
        undone_by=("drill", "maintenance", "{host}", "--clear"),
    ),
    # the kill comes first: while the next attempt starts, the newest checkpoint stays the newest
    "flipped-byte": Kind(commands=(_KILL, ("drill", "corrupt-checkpoint", "{run}"))),
    "missing-file": Kind(commands=(_KILL, ("drill", "corrupt-checkpoint", "{run}", "--how", "missing-file"))),
    "store-outage": Kind(commands=(("drill", "store-outage", "--seconds", str(SLOW_SECONDS)),), relaunches=False),
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One of them, and when."""

    kind: str
    after: int
    """New steps since the fault before."""
    host: int
    """Which of the hosts that run the attempt, modulo their number."""


def draw(*, seed: int, count: int) -> tuple[Fault, ...]:
    """``count`` faults: each kind as often as each other, give or take one, in an order by chance."""
    order, places = Random(f"soak {seed}, kinds"), Random(f"soak {seed}, places")
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += order.sample(sorted(KINDS), len(KINDS))
    return tuple(
        Fault(kind=kind, after=places.randint(FEWEST_STEPS, MOST_STEPS), host=places.randrange(6))
        for kind in kinds[:count]
    )
