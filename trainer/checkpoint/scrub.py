"""Reading a checkpoint back beside the run, to prove it or to put it aside.

    python -m trainer.checkpoint.scrub --store <address> --run <name> --manifest <name>

One process, any machine, no accelerator: files are hashed, then arrays are read one at a time and their checksums
computed by the contract's own reference, which shares no code with the devices'. Exit 0: proven; 1: it is not whole
and was quarantined, or it could not be read now, and the one line that is printed says which.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import jax

from orchestrator.contract.checksum import checksum
from orchestrator.contract.manifest import Manifest, Proof, Quarantine
from orchestrator.store.objects import StoreError
from orchestrator.store.opening import open_objects
from orchestrator.store.run_store import RunStore
from trainer.checkpoint import orbax_files
from trainer.checkpoint.verify import changed_file, differing_arrays


def scrub(store: RunStore, manifest: Manifest) -> str | None:
    """Write the proof, or the quarantine and return what is wrong.

    Raises:
        StoreError, OSError: not now; nothing was found out.
        ValueError: it was deleted, before or meanwhile.
    """
    problem = problem_of(manifest, store)
    if problem is not None and manifest.name in store.tombstones():
        raise ValueError("retention has deleted it")
    now = time.time()
    if problem is None:
        proof = Proof(manifest=manifest.name, how="scrub", attempt=None, arrays=len(manifest.arrays), at=now)
        store.create_proof(proof)
    else:
        store.create_quarantine(Quarantine(manifest=manifest.name, problem=problem, attempt=None, at=now))
    return problem


def problem_of(manifest: Manifest, store: RunStore) -> str | None:
    """What is wrong with a checkpoint; host memory: its largest array."""
    problem = changed_file(manifest, store)
    if problem is not None:
        return problem
    for path in manifest.arrays:
        try:
            array = orbax_files.read_array(store.checkpoint_address(manifest.folder), path)
        except orbax_files.NotAsAsked as error:
            return f"its files are as they were written, but {error}"
        found = {path: (array.dtype.name, array.shape, checksum(array))}
        problem = differing_arrays(manifest, found, paths=[path])
        if problem is not None:
            return problem
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.checkpoint.scrub", description=__doc__)
    for name, what in (("store", "its folder or gs:// address"), ("run", "the run"), ("manifest", "the checkpoint")):
        parser.add_argument(f"--{name}", required=True, help=what)
    asked = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")  # never take the accelerator from the run
    try:
        store = RunStore(open_objects(asked.store), asked.run)
        problem = scrub(store, store.manifest(asked.manifest))
    except (StoreError, OSError, ValueError) as error:
        print(f"everstep: {asked.manifest} could not be read: {error}", file=sys.stderr)
        return 1
    if problem is not None:
        print(f"everstep: {asked.manifest} is not whole and was quarantined: {problem}", file=sys.stderr)
        return 1
    print(f"everstep: {asked.manifest} is proven")
    return 0


if __name__ == "__main__":
    sys.exit(main())
