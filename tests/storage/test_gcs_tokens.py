"""Token files in a bucket: the batches of a folder's, by range, of the generation that was submitted and no other."""

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from orchestrator.cli.errors import BadInput
from orchestrator.cli.samples import token_check
from orchestrator.cli.token_files import resolve
from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Data, Recipe, TokenFile
from orchestrator.order import token_files
from orchestrator.order.global_order import GlobalOrder, data_sha256, permutation
from orchestrator.reports.tokens import TokenFiles
from orchestrator.store.gcs import GcsStore, Patience
from orchestrator.store.objects import Conflict, NotFound, StoreUnavailable
from orchestrator.store.opening import crc32c_of
from tests.local.attempts import MODEL, stage_of, write_tokens
from tests.storage.fault_proxy import FAULTS, Fault, first, now_and_then
from tests.storage.gcs_server import GcsServer
from tests.unit.cli_folder import CliFolder, error_line, everstep
from tests.unit.run_factory import RunFactory
from trainer.data.token_files import StageBatches

QUICK = Patience(connect=2.0, answer=0.3, total=20.0, longest_pause=0.02)
SEED = 20261201


def recipe_of(*files: TokenFile, orders: tuple[TokenFile, ...] = ()) -> Recipe:
    stage = stage_of(files[0], steps=40)
    return Recipe(
        name="small", model=MODEL, stages=(stage.model_copy(update={"data": Data(files=files, orders=orders, seed=7)}),)
    )


class Corpus:
    """The same files in a folder and in a bucket."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address, self.bucket = folder, address, GcsStore(address)
        for name, count in (("a.u32", 2048), ("sub/b=1.npy", 1000)):
            (folder / name).parent.mkdir(exist_ok=True)
            write_tokens(folder / name, count=count)
            self.put(name, (folder / name).read_bytes())
        self.bare = (TokenFile(path="a.u32"), TokenFile(path="./sub/b=1.npy"))

    def put(self, name: str, data: bytes) -> None:
        """Names of others may have any character; our own objects' may not."""
        self.bucket._bucket.blob(self.bucket._key(name)).upload_from_string(data)

    def local(self) -> Recipe:
        return resolve(recipe_of(*self.bare), data_root=self.folder)

    def remote(self) -> Recipe:
        return resolve(recipe_of(*self.bare), data_root=self.address)


@pytest.fixture
def corpus(tmp_path: Path, address: str) -> Corpus:
    return Corpus(tmp_path, address)


def batches(recipe: Recipe, data_root: Path | str) -> StageBatches:
    return StageBatches(recipe.stages[0], vocab_size=recipe.model.vocab_size, data_root=data_root)


def gets(server: GcsServer) -> int:
    return sum(asked.method == "GET" for asked, _ in server.proxy.seen)


# ---- the client
@pytest.mark.parametrize("fault", FAULTS)
def test_ranges_and_entries_outlive_each_fault(server: GcsServer, address: str, fault: Fault) -> None:
    store = GcsStore(address, patience=QUICK)
    generation = store.create("a", bytes(range(200)))
    server.proxy.choose = first(fault, times=2)
    assert store.read_range("a", start=20, size=100, generation=generation) == bytes(range(20, 120))
    server.proxy.choose = first(fault, times=2)
    found = store.entry("a")
    assert server.proxy.faults() == [fault] * 4
    assert (found.size, found.crc32c, found.generation) == (200, crc32c_of(memoryview(bytes(range(200)))), generation)


def test_another_generation_and_no_object_are_told_apart(address: str) -> None:
    store = GcsStore(address)
    old = store.create("a", b"12345678")
    store.swap("a", b"abcdefgh", generation=old)
    with pytest.raises(Conflict, match="a was changed"):
        store.read_range("a", start=0, size=4, generation=old)
    with pytest.raises(NotFound):
        store.read_range("b", start=0, size=4, generation=old)
    with pytest.raises(NotFound):
        store.entry("b")


# ---- submit
def test_submit_freezes_what_the_service_says_and_reads_nothing(server: GcsServer, corpus: Corpus) -> None:
    before = gets(server)
    found = corpus.remote()
    assert gets(server) - before == 2
    for file, name in zip(found.stages[0].data.files, ("a.u32", "sub/b=1.npy"), strict=True):
        data = (corpus.folder / name).read_bytes()
        assert (file.tokens, file.sha256, file.crc32c) == (len(data) // 4, None, crc32c_of(memoryview(data)))
        assert file.generation == corpus.bucket.entry(name).generation
    assert found.resolved
    assert resolve(found, data_root=corpus.address) == found
    assert Recipe.from_bytes(found.to_bytes(), where="here") == found
    assert data_sha256(found.stages[0].data) != data_sha256(corpus.local().stages[0].data)


def test_a_mix_in_a_folder_names_files_in_buckets(corpus: Corpus) -> None:
    (corpus.folder / "all.mix").write_text(f"web,{corpus.address}/a.u32\nweb,sub/b=1.npy\n")
    stage = corpus.local().stages[0]
    recipe = Recipe(name="mixed", model=MODEL, stages=(stage.model_copy(update={"data": Data(mix="all.mix", seed=7)}),))
    found = resolve(recipe, data_root=corpus.folder)
    one, other = found.stages[0].data.files
    assert (one.path, one.sha256 is None, one.generation is None) == (f"{corpus.address}/a.u32", True, False)
    assert (other.path, other.sha256 is None, other.generation is None) == ("sub/b=1.npy", False, True)
    rows, wanted = np.arange(4), batches(corpus.local(), corpus.folder)
    assert batches(found, corpus.folder).read(3, rows).tolist() == wanted.read(3, rows).tolist()
    corpus.put("all.mix", b"web,a.u32\n")
    found = resolve(recipe, data_root=corpus.address)
    assert [file.path for file in found.stages[0].data.files] == ["a.u32"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "gone.u32"}, "/gone.u32: no such object; correct data_root or the recipe's path"),
        ({"path": "torn.u32"}, "/torn.u32: 5 bytes is not a whole, positive number of uint32 tokens"),
        ({"path": "short.u32"}, "its token files hold 0 instances"),
        ({"tokens": 5}, "/a.u32: holds 2,048 tokens, the recipe says 5"),
        ({"crc32c": "AAAAAA=="}, "/a.u32: its crc32c is "),
        ({"generation": "1"}, "the recipe says 1; correct the recipe"),
        ({"sha256": "0" * 64}, "/a.u32: a bucket does not tell its SHA-256; take it out of the recipe"),
    ],
)
def test_what_is_wrong_in_a_bucket_is_named(corpus: Corpus, change: dict[str, object], says: str) -> None:
    corpus.put("torn.u32", b"12345")
    corpus.put("short.u32", b"1234")
    file = corpus.bare[0].model_copy(update=change)
    with pytest.raises((BadInput, ContractError)) as caught:
        resolve(recipe_of(file), data_root=corpus.address)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_not_taken_for_missing_files(server: GcsServer, tmp_path: Path) -> None:
    with pytest.raises((StoreUnavailable, ContractError), match="gs://everstep-nowhere"):
        resolve(recipe_of(TokenFile(path="a.u32")), data_root="gs://everstep-nowhere/data")


def test_written_orders_in_a_bucket_are_held_against_the_seed_and_read_by_range(corpus: Corpus) -> None:
    computed = GlobalOrder(corpus.remote().stages[0])
    right = permutation(computed.instances, seed=7)
    corpus.put("orders/0.u32", right.tobytes())
    found = resolve(recipe_of(*corpus.bare, orders=(TokenFile(path="orders/0.u32"),)), data_root=corpus.address)
    written = GlobalOrder(found.stages[0], data_root=corpus.address)
    for index in (0, 1, computed.batches_an_epoch - 1, computed.batches_an_epoch):
        assert written.batch(index).tolist() == computed.batch(index).tolist()
    corpus.put("orders/0.u32", np.roll(right, 1).tobytes())
    with pytest.raises(BadInput, match=r"orders/0\.u32: is not the order of epoch 0"):
        resolve(recipe_of(*corpus.bare, orders=(TokenFile(path="orders/0.u32"),)), data_root=corpus.address)


# ---- a trainer, and audits
def test_batches_and_checksums_are_those_of_the_same_files_in_a_folder(server: GcsServer, corpus: Corpus) -> None:
    local, remote = corpus.local(), corpus.remote()
    server.proxy.choose = now_and_then(SEED, share=0.1, kinds=("429", "503", "lost", "cut", "refused"))
    one, other, rows = batches(local, corpus.folder), batches(remote, corpus.address), np.array([3, 0, 2])
    for index in (0, 1, 2, 11, 12, 60):
        assert other.read(index, rows).tolist() == one.read(index, rows).tolist()
    assert server.proxy.faults()
    for step in (0, 39):
        wanted = TokenFiles(corpus.folder).checksum_of(local, step)
        assert TokenFiles(corpus.address).checksum_of(remote, step) == wanted


@pytest.mark.parametrize("how", ["written again", "other bytes", "gone"])
def test_an_object_that_changed_after_submit_is_refused_at_the_start_and_in_a_step(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    recipe = corpus.remote()
    found = batches(recipe, corpus.address)
    found.verify_hashes(turn=1)
    data = (corpus.folder / "a.u32").read_bytes()
    if how == "gone":
        corpus.bucket.delete("a.u32")
    else:
        corpus.put("a.u32", data if how == "written again" else data[4:] + data[:4])
    with pytest.raises(ContractError, match=r"/a\.u32: ") as caught:
        found.verify_hashes(turn=1)
    assert "\n" not in str(caught.value)
    with pytest.raises(ContractError, match=r"/a\.u32: it (is gone|was written again); the run was submitted with gen"):
        found.read(0, np.arange(4))


def test_a_bucket_that_does_not_answer_is_unavailable(
    server: GcsServer, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = corpus.remote()
    monkeypatch.setattr(token_files, "PATIENCE_SECONDS", 0.1)
    found = batches(recipe, corpus.address)
    server.proxy.choose = now_and_then(SEED, share=1.0, kinds=("503",))
    with pytest.raises(StoreUnavailable):
        found.read(0, np.arange(4))
    assert len(server.proxy.faults()) <= 16, "four rows were asked for longer than they should be"


# ---- the command line
def test_submit_index_and_verify_with_a_bucket(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = CliFolder(tmp_path)
    corpus.put("text.u32", (tmp_path / "data" / "text.u32").read_bytes())
    folder.run["data_root"] = corpus.address
    result = folder.submit()
    assert result.exit_code == 0, result.output
    run = folder.store.run()
    assert run.data_root == corpus.address
    (file,) = folder.store.recipe(run.recipe_sha256).stages[0].data.files
    assert (file.tokens, file.sha256, file.generation is None) == (512, None, False)

    result = everstep("data", "index", "recipe.yaml", "--data-root", corpus.address, "--json")
    (order,) = json.loads(result.stdout)["orders"]["pretrain"]
    assert order == {"path": "orders/pretrain-64-0.u32", "sha256": None, "tokens": 64}
    assert np.fromfile(order["path"], "<u4").tolist() == permutation(64, seed=0).tolist()
    assert f"gcloud storage cp --recursive orders {corpus.address}/" in result.stderr

    assert "samples are not computed again" not in folder.call("verify", "demo").stderr
    folder.recipe["initial"] = {"folder": "weights"}
    assert "weights are read from a folder" in error_line(folder.submit("--name", "other"))


def test_a_run_whose_bucket_is_gone_is_verified_without_its_tokens_unless_they_are_asked_for(server: GcsServer) -> None:
    said: list[str] = []
    run = RunFactory(steps=12).store.run().model_copy(update={"data_root": "gs://everstep-nowhere/data"})
    store = Mock(run=lambda: run)
    assert token_check(store, None, say=said.append) is None
    assert "there is no such bucket" in said[0]
    assert "samples are not computed again; --data-root says where they are" in said[1]
    with pytest.raises(StoreUnavailable, match="there is no such bucket"):
        token_check(store, "gs://everstep-nowhere/data", say=said.append)
