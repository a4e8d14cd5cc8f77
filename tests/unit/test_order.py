"""The global order: every sample once an epoch, whatever the hardware, and pinned to known numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contract.base import sha256_of
from orchestrator.contract.recipe import Data, Schedule, Stage, TokenFile
from orchestrator.order.global_order import GlobalOrder, Place, data_sha256, permutation


def stage_of(*tokens: int | None, length: int = 4, ranks: int = 2, per_rank: int = 1, seed: int = 0) -> Stage:
    return Stage(
        name="pretrain",
        steps=10,
        virtual_ranks=ranks,
        sequences_per_rank=per_rank,
        sequence_length=length,
        data=Data(files=tuple(TokenFile(path=f"{n}.u32", tokens=count) for n, count in enumerate(tokens)), seed=seed),
        schedule=Schedule(peak=1e-3),
    )


def test_permutation_is_pinned() -> None:
    """NumPy does not promise the stream of ``shuffle`` between its releases; these are of 2.4.6 and 2.5.5."""
    assert permutation(10, seed=34521).tolist() == [0, 3, 8, 7, 2, 1, 6, 9, 4, 5]
    assert permutation(10, seed=34522).tolist() == [5, 9, 8, 4, 0, 6, 1, 2, 7, 3]
    large = permutation(100_003, seed=34521).astype("<u4").tobytes()
    assert sha256_of(large) == "944f7efc1236570956b4cb5ada00f03450436a6a132a520a0fc5a1cfc0b6e26a"
    assert permutation(3, seed=0).dtype == np.uint32


def test_tails_of_files_are_dropped() -> None:
    order = GlobalOrder(stage_of(11, 4, 9))
    assert order.instances == 2 + 1 + 2
    assert [order.place(instance) for instance in range(5)] == [
        Place(file=0, token=0),
        Place(file=0, token=4),
        Place(file=1, token=0),
        Place(file=2, token=0),
        Place(file=2, token=4),
    ]
    for beyond in (-1, 5):
        with pytest.raises(IndexError):
            order.place(beyond)


def test_file_shorter_than_an_instance_has_none() -> None:
    order = GlobalOrder(stage_of(3, 12))
    assert [order.place(instance).file for instance in range(order.instances)] == [1, 1, 1]


@given(
    tokens=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    ranks=st.sampled_from([1, 2, 4]),
    per_rank=st.integers(1, 3),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
)
def test_each_epoch_reads_each_instance_at_most_once(
    tokens: list[int], ranks: int, per_rank: int, seed: int, epoch: int
) -> None:
    stage = stage_of(*tokens, ranks=ranks, per_rank=per_rank, seed=seed)
    if sum(count // 4 for count in tokens) < stage.global_batch:
        with pytest.raises(ValueError, match="one batch takes"):
            GlobalOrder(stage)
        return
    order = GlobalOrder(stage)
    first = epoch * order.batches_an_epoch
    read = np.concatenate([order.batch(first + k) for k in range(order.batches_an_epoch)])
    assert len(set(read.tolist())) == len(read) == order.batches_an_epoch * stage.global_batch
    assert order.instances - len(read) < stage.global_batch
    assert read.tolist() == permutation(order.instances, seed=seed + epoch)[: len(read)].tolist()


def test_any_batch_can_be_asked_for_at_any_time() -> None:
    stage = stage_of(40, ranks=4)
    straight = GlobalOrder(stage)
    batches = {index: straight.batch(index).tolist() for index in range(6)}
    jumping = GlobalOrder(stage)
    for index in (5, 0, 3, 3, 1):
        assert jumping.batch(index).tolist() == batches[index]
    assert batches[0] != batches[2], "another epoch, another order"


def test_length_that_submit_did_not_fill_in_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the length of 1\.u32 is not in the recipe"):
        GlobalOrder(stage_of(8, None))


def test_data_hash_knows_files_and_seed() -> None:
    base = stage_of(8, 8).data
    others = [stage_of(8, 9).data, stage_of(8, 8, seed=1).data, base.model_copy(update={"files": base.files[::-1]})]
    assert len({data_sha256(data) for data in [base, *others]}) == 4
