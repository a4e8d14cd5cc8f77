"""What ``everstep doctor`` checks of a local fleet and of the runs on it."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.local.fleet_file import read_fleet
from orchestrator.backends.local.trainer_environment import trainer_environment
from orchestrator.cli.controllers import how_to_start, without_leader
from orchestrator.cli.doctor_finding import Finding, Machine, ok, problem, warning
from orchestrator.contract.attempt import HostRef
from orchestrator.contract.base import ContractError
from orchestrator.fleet.backend import BackendUnavailable
from orchestrator.fleet.local_fleet import LocalFleet
from orchestrator.fleet.observation import HostView
from orchestrator.reports.facts import read_facts
from orchestrator.store.objects import ObjectStore, StoreError
from orchestrator.store.run_store import RunStore

LISTED = 3
"""Hosts that a finding names."""


def fleet_findings(folder: Path, machine: Machine, *, working: Mapping[HostRef, str]) -> list[Finding]:
    """``working``: hosts on which a trainer should be at work now, and of which run."""
    try:
        fleet = read_fleet(folder)
        hosts = LocalBackend(fleet=folder, store_address="", run="").hosts()
    except (ContractError, OSError, BackendUnavailable) as error:
        what, _, remedy = str(error).rpartition("; ")
        return [problem("fleet", what or remedy, remedy=remedy if what else "correct fleet.yaml")]
    return [
        ok("fleet", f"{folder}, {sum(pool.hosts for pool in fleet.pools)} hosts"),
        _hosts(hosts, working),
        _cpus(fleet, machine),
        _compile_cache(fleet, folder),
    ]


def run_findings(store: ObjectStore, names: list[str]) -> list[Finding]:
    """Whether somebody leads each run that is not over."""
    found = []
    for name in names:
        try:
            lost = without_leader(RunStore(store, name))
        except (StoreError, ContractError) as error:
            found.append(problem("controller", str(error), remedy="restore that document from a copy"))
            continue
        if lost:
            remedy = how_to_start(name, store.address)
            found.append(problem("controller", f"no controller leads run {name}", remedy=remedy))
    return found or [ok("controller", "every run that goes on is led, as far as can be seen from here")]


def working_hosts(store: ObjectStore, names: list[str], *, fleet: Path) -> dict[HostRef, str]:
    """The hosts of this fleet that attempts are on which have not ended."""
    found = {}
    for name in names:
        try:
            facts = read_facts(RunStore(store, name))
        except (StoreError, ContractError):
            continue  # its damage is said by ``run_findings``
        newest = facts.specs.get(facts.head.attempt)
        if newest is not None and facts.changes[-1].live and Path(facts.run.fleet) == fleet:
            found.update(dict.fromkeys(newest.hosts, name))
    return found


def _hosts(hosts: tuple[HostView, ...], working: Mapping[HostRef, str]) -> Finding:
    unknown = [f"{host.ref}: {host.evidence}" for host in hosts if host.condition == "unknown"]
    if unknown:
        remedy = "end what holds the lock (lsof agent.lock), or wait for its end; everstep fleet shows each host"
        return problem("hosts", _some(unknown), remedy=remedy)
    idle = [
        f"{host.ref} has no agent, and an attempt of run {working[host.ref]} is on it"
        for host in hosts
        if host.ref in working and (host.agent is None or host.agent.run != working[host.ref])
    ]
    if idle:
        return warning("hosts", _some(idle), remedy="its controller relaunches it: everstep why RUN")
    gone = [str(host.ref) for host in hosts if host.condition == "gone"]
    if gone:
        return warning("hosts", f"taken away: {_some(gone)}", remedy="everstep drill grow POOL gives them back")
    alive = sum(host.agent is not None for host in hosts)
    return ok("hosts", f"{alive} of {len(hosts)} have a living agent, and no lock is held by anything else")


def _cpus(fleet: LocalFleet, machine: Machine) -> Finding:
    cpus = machine.cpus()
    pool = max(fleet.pools, key=lambda pool: pool.hosts * pool.devices_per_host)
    devices = pool.hosts * pool.devices_per_host
    found = f"{cpus} CPUs for the {devices} devices of pool {pool.name} ({pool.hosts} hosts x {pool.devices_per_host})"
    if devices <= cpus:
        return ok("cpus", found)
    return warning("cpus", found, remedy="expect slower steps, or list fewer hosts; no bit depends on it")


def _compile_cache(fleet: LocalFleet, folder: Path) -> Finding:
    cache = Path(trainer_environment(fleet.pools[0], fleet=folder)["EVERSTEP_COMPILE_CACHE"])
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache, prefix="doctor-"):
            pass
    except OSError as error:
        remedy = "make it a folder that trainers can write; without it every start compiles again"
        return problem("compile cache", f"{cache}: {error.strerror or error}", remedy=remedy)
    return ok("compile cache", str(cache))


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - LISTED} more" if len(texts) > LISTED else ""
    return ", ".join(texts[:LISTED]) + more
