"""Finding the local fleet that a command is about."""

import os
from pathlib import Path

from orchestrator.cli.errors import BadInput
from orchestrator.cli.stores import open_run, open_store, run_names
from orchestrator.contract.attempt import HostRef
from orchestrator.fleet.local_fleet import LocalFleet
from orchestrator.store.run_store import RunStore

DEFAULT_FLEET = "fleet"


def find_fleet(*, given: str | None, run: str | None, store: str | None) -> Path:
    """The folder that was named; else the run's fleet, the one that all runs of the store share, or ./fleet.

    Raises:
        BadInput: none, or several.
    """
    if given is not None:
        return Path(given).absolute()
    if run is not None:
        return Path(open_run(open_store(store), run).run().fleet)
    if store is None and not os.path.isdir("store"):
        if os.path.isdir(DEFAULT_FLEET):
            return Path(DEFAULT_FLEET).absolute()
        raise BadInput("which fleet? pass --fleet FOLDER or --store FOLDER, or go where ./fleet is")
    objects = open_store(store)
    fleets = sorted({RunStore(objects, name).run().fleet for name in run_names(objects)})
    if len(fleets) != 1:
        raise BadInput(f"which fleet? pass --fleet with one of: {', '.join(fleets) or 'none, the store has no runs'}")
    return Path(fleets[0])


def host_named(text: str, fleet: LocalFleet) -> HostRef:
    """``main/h1``; the pool may be left out where there is only one.

    Raises:
        BadInput: no such host; names those there are.
    """
    pool_name, slash, host = text.rpartition("/")
    pools = [pool for pool in fleet.pools if not slash or pool.name == pool_name]
    found = [ref for pool in pools for ref in pool.refs() if ref.host == host]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{pool.name}/h0 … {pool.name}/h{pool.hosts - 1}" for pool in fleet.pools)
    raise BadInput(f"{text!r} is {'no host' if not found else 'more than one host'} of the fleet; there are {there}")
