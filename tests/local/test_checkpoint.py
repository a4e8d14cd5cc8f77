"""Checkpoints: the bits that are written, the commit that counts, and the proof that reads them back."""

import json
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from orchestrator.contract.checksum import checksum
from orchestrator.contract.ledger import Fingerprint
from orchestrator.contract.manifest import Manifest, Quarantine, manifest_name
from orchestrator.store.local import LocalStore
from orchestrator.store.objects import StoreUnavailable
from orchestrator.store.run_store import RunStore
from tests.local.attempts import REPOSITORY, SmallRun, small_recipe, stage_of, write_tokens
from trainer.checkpoint import orbax_files, scrub
from trainer.checkpoint.commit import Committer, Fenced, Origin, own_head
from trainer.checkpoint.restore import NothingRestores, Restorer, checksums_of
from trainer.checkpoint.saver import Outcome, Saver
from trainer.checkpoint.verify import Checksums, changed_file, differing_arrays, missing_or_resized
from trainer.parallel.state_checksums import ReadChecksums, by_path

ONE_HASH = "0" * 64


def mesh_of(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("d",))


def bits(shape: tuple[int, ...], *, dtype: Any, seed: int) -> NDArray[Any]:
    """Random bits: NaN payloads, infinities, subnormals and negative zeros among them."""
    unsigned = np.uint32 if np.dtype(dtype).itemsize == 4 else np.uint16
    drawn = np.random.default_rng(seed).integers(0, 1 << 8 * unsigned().itemsize, shape, dtype=unsigned)
    drawn.flat[:2] = (1, 1 << (8 * unsigned().itemsize - 1))
    return drawn.view(dtype)


VALUES: dict[str, Any] = {
    "params": {
        "table": bits((32, 48), dtype=np.float32, seed=1),
        "scale": bits((16,), dtype=np.float32, seed=2),
    },
    "opt": {"m": bits((32, 48), dtype=jnp.bfloat16, seed=3), "count": np.int32(7)},
}
CHECKSUMS: Checksums = {
    path: (array.dtype.name, np.shape(array), checksum(np.asarray(array))) for path, array in by_path(VALUES).items()
}


def abstract_on(mesh: Mesh, *, axis: int) -> Any:
    """The state's arrays, cut along one axis where they have it."""

    def one(value: Any) -> jax.ShapeDtypeStruct:
        cut = [None] * np.ndim(value)
        if len(cut) > axis:
            cut[axis] = "d"
        return jax.ShapeDtypeStruct(np.shape(value), value.dtype, sharding=NamedSharding(mesh, PartitionSpec(*cut)))

    return jax.tree.map(one, VALUES)


def state_on(mesh: Mesh, *, axis: int = 0) -> Any:
    return jax.tree.map(
        lambda value, target: jax.make_array_from_callback(target.shape, target.sharding, lambda index: value[index]),
        jax.tree.map(np.asarray, VALUES),
        abstract_on(mesh, axis=axis),
    )


def same_bits(found: Any) -> bool:
    pairs = zip(jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(VALUES), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() and a.dtype == b.dtype for a, b in pairs)


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path, small_recipe(stage_of(write_tokens(tmp_path / "tokens.u32"))))


class Alone:
    """The agreement of one process with itself."""

    process = 0

    def from_first(self, what: str, text: str, *, seconds: float) -> str:
        return text

    def gather(self, what: str, text: str, *, seconds: float) -> list[str]:
        return [text]

    def meet(self, label: str, point: str, *, seconds: float) -> None: ...

    def give_up(self, label: str, problem: str) -> None: ...


class FaultyStore(LocalStore):
    """Swaps as ``faults`` say, one a try: ``down`` does nothing, ``lost`` swaps and loses the answer."""

    def __init__(self, root: Path, faults: list[str]) -> None:
        super().__init__(root)
        self.faults = faults

    def swap(self, name: str, data: bytes, *, generation: str) -> str:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "down":
            raise StoreUnavailable("no route to the store")
        found = super().swap(name, data, generation=generation)
        if fault == "lost":
            raise StoreUnavailable("no answer")
        return found


def committer_of(run: SmallRun, *, store: RunStore | None = None, patience: float = 60.0) -> Committer:
    number = run.fence()
    spec = run.spec(number, hosts=1, devices=1)
    origin = Origin(
        spec=spec,
        fingerprint=Fingerprint(numerics=ONE_HASH, leaf=ONE_HASH),
        versions={"jax": jax.__version__},
        data_sha256=ONE_HASH,
    )
    return Committer(
        store or run.store,
        origin=origin,
        head=own_head(run.store, spec),
        parent=run.head.manifest,
        close_ledger=lambda _: None,
        patience=patience,
    )


def saver_of(run: SmallRun, committer: Committer) -> Saver:
    return Saver(Alone(), store=run.store, attempt=run.head.attempt, committer=committer)


def saved(run: SmallRun, *, next_step: int = 4) -> Manifest:
    """A committed checkpoint of ``VALUES``, saved on two devices."""
    outcome = save(saver_of(run, committer_of(run)), next_step)
    assert outcome.manifest is not None, outcome.problem
    return run.store.manifest(outcome.manifest)


def save(saver: Saver, next_step: int) -> Outcome:
    state = state_on(mesh_of(2))
    saver.start(next_step, state, lambda: CHECKSUMS)
    return saver.finish()


def folder_of(run: SmallRun, manifest: Manifest) -> Path:
    return run.folder / "store" / "small" / manifest.folder


# ---- arrays
@pytest.mark.parametrize(("devices", "axis"), [(2, 0), (2, 1), (4, 0), (8, 1), (1, 0)])
def test_restore_onto_any_mesh_has_the_bits_that_were_saved(tmp_path: Path, devices: int, axis: int) -> None:
    orbax_files.save(str(tmp_path), state_on(mesh_of(2)), label="one").wait()
    wanted = abstract_on(mesh_of(devices), axis=axis)
    found = orbax_files.restore(str(tmp_path), wanted)
    assert same_bits(found)
    assert jax.tree.map(lambda a: a.sharding, found) == jax.tree.map(lambda a: a.sharding, wanted)


def test_state_may_be_donated_as_soon_as_save_returns(tmp_path: Path) -> None:
    state = state_on(mesh_of(2))
    change = jax.jit(lambda tree: jax.tree.map(lambda a: a * 0 + 1, tree), donate_argnums=0)
    pending = orbax_files.save(str(tmp_path), state, label="two")
    for _ in range(3):
        state = jax.block_until_ready(change(state))
    pending.wait()
    assert same_bits(orbax_files.restore(str(tmp_path), abstract_on(mesh_of(1), axis=0)))


def test_missing_array_and_other_shape_or_dtype_are_errors(tmp_path: Path) -> None:
    orbax_files.save(str(tmp_path), state_on(mesh_of(2)), label="three").wait()
    wanted = abstract_on(mesh_of(2), axis=0)
    table = wanted["params"]["table"]
    part = {"params": {"table": table}}
    assert list(orbax_files.restore(str(tmp_path), part)) == ["params"], "a part may be asked for"
    with pytest.raises(ValueError, match="array params/other is missing"):
        orbax_files.restore(str(tmp_path), {"params": {"other": table}})
    half = jax.ShapeDtypeStruct((16, 48), table.dtype, sharding=table.sharding)
    with pytest.raises(ValueError, match="shape"):
        orbax_files.restore(str(tmp_path), {"params": {"table": half}})
    narrow = jax.ShapeDtypeStruct(table.shape, jnp.bfloat16, sharding=table.sharding)
    with pytest.raises(ValueError, match=r"params/table is float32\[32, 48\], not bfloat16\[32, 48\]"):
        orbax_files.restore(str(tmp_path), {"params": {"table": narrow}})


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("axis", [0, 1])
def test_checksums_on_devices_are_those_of_the_contract(devices: int, axis: int) -> None:
    mesh = mesh_of(devices)
    assert checksums_of(state_on(mesh, axis=axis), mesh=mesh) == CHECKSUMS


# ---- commit
def test_commit_makes_the_chain_that_head_names(run: SmallRun) -> None:
    saver = saver_of(run, committer_of(run))
    outcomes = [save(saver, step) for step in (0, 4, 8)]
    assert [outcome.manifest for outcome in outcomes] == [manifest_name(step, 1) for step in (0, 4, 8)]
    chain = run.store.lineage(run.head.manifest)
    assert [(manifest.next_step, manifest.parent) for manifest in chain] == [
        (8, manifest_name(4, 1)),
        (4, manifest_name(0, 1)),
        (0, None),
    ]
    assert changed_file(chain[0], run.store) is None
    assert {name.split("/")[0] for name in chain[0].files} == {"state"}


def test_fenced_attempt_writes_a_witness_and_no_checkpoint(run: SmallRun) -> None:
    saver = saver_of(run, committer_of(run))
    save(saver, 4)
    run.fence()
    outcome = save(saver, 8)
    assert outcome.fenced
    assert "fenced by attempt 2" in str(outcome.problem)
    assert (run.head.attempt, run.head.manifest) == (2, manifest_name(4, 1))


def test_attempt_that_head_does_not_name_never_begins(run: SmallRun) -> None:
    spec = run.spec(run.fence(), hosts=1, devices=1)
    run.fence()
    with pytest.raises(Fenced, match="fenced by attempt 2"):
        own_head(run.store, spec)
    with pytest.raises(ValueError, match="head says attempt 2, this is 3"):
        own_head(run.store, spec.model_copy(update={"attempt": 3}))


@pytest.mark.parametrize("faults", [["down"], ["lost"], ["down", "lost"]])
def test_store_that_is_away_for_a_while_or_loses_an_answer_fences_nobody(run: SmallRun, faults: list[str]) -> None:
    store = RunStore(FaultyStore(run.folder / "store", faults), "small")
    saver = saver_of(run, committer_of(run, store=store))
    assert save(saver, 4).manifest == manifest_name(4, 1)
    assert save(saver, 8).manifest == manifest_name(8, 1), "the generation of the swap is known"
    assert not faults


def test_swap_that_failed_is_all_that_is_done_again(run: SmallRun) -> None:
    store = RunStore(FaultyStore(run.folder / "store", ["down"] * 2), "small")
    saver = saver_of(run, committer_of(run, store=store, patience=0.0))
    first = save(saver, 4)
    assert "no route to the store" in str(first.problem)
    assert run.head.manifest is None
    written = run.store.manifest(manifest_name(4, 1))
    save(saver, 4)
    assert save(saver, 4).manifest == manifest_name(4, 1)
    assert run.store.manifest(manifest_name(4, 1)) == written


def test_records_are_closed_before_the_checkpoint_that_they_lead_to(run: SmallRun) -> None:
    committer = committer_of(run)
    seen: list[str | None] = []

    def refuse(_: int | None) -> None:
        seen.append(run.head.manifest)
        raise StoreUnavailable("ledger: 3 records wait")

    committer._close_ledger = refuse
    outcome = save(saver_of(run, committer), 4)
    assert "3 records wait" in str(outcome.problem)
    assert run.head.manifest is None
    assert run.store.manifest_names() == []


class Uncompiled:
    """A program on a mesh, whose checksums alone can be asked for."""

    def __init__(self) -> None:
        self.mesh = mesh_of(2)
        self.abstract_state = abstract_on(self.mesh, axis=0)

    def checksums(self, state: Any) -> ReadChecksums:
        return lambda: checksums_of(state, mesh=self.mesh)

    def next_stage_state(self, params: Any) -> Any:
        raise NotImplementedError


def restorer_of(run: SmallRun) -> Restorer:
    spec = run.spec(run.fence(), hosts=1, devices=2)
    return Restorer(store=run.store, spec=spec, stage_first_step=0, program=Uncompiled(), peers=Alone(), log=print)


def test_a_restore_that_was_begun_does_not_read_again(run: SmallRun) -> None:
    manifest = saved(run)
    restorer = restorer_of(run)
    restorer.begin()
    assert restorer._ahead is not None
    restorer._ahead.result()
    shutil.rmtree(folder_of(run, manifest))
    restored = restorer.newest()
    assert restored.manifest == manifest
    assert same_bits(restored.state)


def test_what_was_read_ahead_is_not_taken_for_an_older_checkpoint(run: SmallRun) -> None:
    older, newest = saved(run), saved(run, next_step=8)
    restorer = restorer_of(run)
    restorer.begin()
    run.store.create_quarantine(Quarantine(manifest=newest.name, problem="x", attempt=None, at=0.0))
    shutil.rmtree(folder_of(run, older) / "state")
    with pytest.raises(NothingRestores, match="1 tried now"):
        restorer.newest()


def test_head_names_a_checkpoint_once_the_step_beyond_it_was_recorded(run: SmallRun) -> None:
    committer = committer_of(run)
    asked: list[tuple[int | None, str | None]] = []
    committer._close_ledger = lambda witness: asked.append((witness, run.head.manifest))
    saver = saver_of(run, committer)
    saver.start(4, state_on(mesh_of(2)), lambda: CHECKSUMS, witness=4)
    saver.finish()
    assert asked == [(4, None)]
    assert run.head.next_step == 4


def test_a_save_takes_as_long_as_its_files_and_not_as_the_step_that_its_commit_waits_for(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer, ahead = committer_of(run), 0.0

    def wait(_: int | None) -> None:
        nonlocal ahead
        ahead = 1e6

    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)
    committer._close_ledger = wait
    outcome = save(saver_of(run, committer), 4)
    assert outcome.manifest is not None, outcome.problem
    found = run.store.manifest(outcome.manifest)
    assert found.save_seconds < 1e3
    assert found.at > clock() + 1e5


def test_folder_of_a_save_that_failed_is_written_again(run: SmallRun) -> None:
    saver = saver_of(run, committer_of(run))
    leftover = run.folder / "store" / "small" / "checkpoints" / manifest_name(4, 1) / "state.orbax-checkpoint-tmp"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("")
    outcome = save(saver, 4)
    assert outcome.manifest is not None
    assert not [name for name in run.store.manifest(outcome.manifest).files if "half" in name]


# ---- evidence
def test_changed_files_are_found_and_named(run: SmallRun) -> None:
    manifest = saved(run)
    folder = folder_of(run, manifest)

    def sizes() -> dict[str, int]:
        return run.store.checkpoint_sizes(manifest.folder)

    assert missing_or_resized(manifest, sizes()) is None
    name = sorted(manifest.files)[0]
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content + b"\0")
    assert (
        missing_or_resized(manifest, sizes()) == f"file {name} has {len(content) + 1} bytes instead of {len(content)}"
    )
    (folder / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert missing_or_resized(manifest, sizes()) is None
    assert changed_file(manifest, run.store) == f"file {name} has another hash"
    (folder / name).unlink()
    assert missing_or_resized(manifest, sizes()) == f"file {name} is missing"


def test_arrays_that_differ_are_named(run: SmallRun) -> None:
    manifest = saved(run)
    found = CHECKSUMS
    assert differing_arrays(manifest, found, paths=manifest.arrays) is None
    dtype, shape, pair = found["opt/m"]
    for other in (("float32", shape, pair), (dtype, (48, 32), pair), (dtype, shape, (pair[0] ^ 1, pair[1]))):
        problem = differing_arrays(manifest, {**found, "opt/m": other}, paths=manifest.arrays)
        assert problem == "the checksum of opt/m is not the manifest's"
    without = {path: entry for path, entry in found.items() if path != "opt/m"}
    assert differing_arrays(manifest, without, paths=manifest.arrays) is not None


# ---- scrub
@pytest.fixture
def scrubbed(run: SmallRun) -> tuple[SmallRun, Manifest, list[str]]:
    manifest = saved(run)
    return run, manifest, ["--store", str(run.folder / "store"), "--run", "small", "--manifest", manifest.name]


def test_scrub_proves_a_whole_checkpoint(scrubbed: tuple[SmallRun, Manifest, list[str]]) -> None:
    run, manifest, arguments = scrubbed
    finished = subprocess.run(
        [sys.executable, "-m", "trainer.checkpoint.scrub", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    proof = run.store.proofs()[manifest.name]
    assert (proof.how, proof.arrays, proof.attempt) == ("scrub", 4, None)


def test_scrub_quarantines_a_damaged_checkpoint(
    scrubbed: tuple[SmallRun, Manifest, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, manifest, arguments = scrubbed
    name = secrets.choice(sorted(manifest.files))
    path = folder_of(run, manifest) / name
    path.write_bytes(path.read_bytes()[:-1] + b"\xaa")
    assert scrub.main(arguments) == 1, name
    assert name in run.store.quarantined()[manifest.name].problem
    assert run.store.proofs() == {}
    assert "was quarantined" in capsys.readouterr().err


def test_scrub_finds_arrays_that_were_written_wrongly(scrubbed: tuple[SmallRun, Manifest, list[str]]) -> None:
    run, manifest, arguments = scrubbed
    path = run.folder / "store" / "small" / "manifests" / f"{manifest.name}.json"
    body = json.loads(path.read_text())
    body["arrays"]["opt/m"]["checksum"] = "0" * 16
    path.write_text(json.dumps(body))
    assert scrub.main(arguments) == 1
    assert run.store.quarantined()[manifest.name].problem == "the checksum of opt/m is not the manifest's"


def test_scrub_says_nothing_against_a_checkpoint_that_retention_deleted(
    scrubbed: tuple[SmallRun, Manifest, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    run, manifest, arguments = scrubbed
    run.store.create_tombstone(manifest.name)
    run.store.delete_checkpoint(manifest.folder)
    assert scrub.main(arguments) == 1
    assert run.store.quarantined() == {}
    assert "retention has deleted it" in capsys.readouterr().err
