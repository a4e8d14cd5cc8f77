"""What the controller does while something cannot be read or written: it says so, waits, and loses nothing."""

from collections.abc import Callable

import pytest

from orchestrator.cli.run_controller import Commentary
from orchestrator.contract.manifest import Manifest
from orchestrator.store.objects import StoreUnavailable
from tests.unit.test_controller import Bench

MANIFEST = "manifests/000000000004-a0001.json"
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "of a newer schema": lambda data: data.replace(b'"manifest/1"', b'"manifest/2"'),
    "of another checkpoint": lambda data: data.replace(b'"next_step": 4', b'"next_step": 5'),
}


class Damaged:
    """A run whose last attempt died, and whose head's manifest cannot be read."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.bench.run.launch("full").train(4).commit().train(7).die(host=3)
        self.whole = self.read(MANIFEST)

    def read(self, name: str) -> bytes:
        return self.bench.objects.read(f"demo/{name}").data

    def write(self, name: str, data: bytes) -> None:
        self.bench.objects.overwrite(f"demo/{name}", data)


@pytest.mark.parametrize("how", DAMAGE)
def test_while_heads_manifest_cannot_be_read_nothing_is_launched_and_it_goes_on_when_it_is_back(how: str) -> None:
    damaged = Damaged()
    bench = damaged.bench
    damaged.write(MANIFEST, DAMAGE[how](damaged.whole))
    number = bench.last.number
    controller = bench.controller()
    for _ in range(3):
        assert controller.look() == "blind"
    assert controller.waiting is not None
    assert f"demo/{MANIFEST}: " in controller.waiting.reason
    assert controller.waiting.reason.isprintable()
    assert (bench.last.number, bench.fleet.done, bench.store.head().value.attempt) == (number, [], 1)
    damaged.write(MANIFEST, damaged.whole)
    assert bench.settle(controller) == "waiting"
    spec = bench.store.attempt(2)
    assert (spec.resume, [segment.last_step for segment in spec.prior]) == ("000000000004-a0001", [6])


def test_it_lives_on_and_says_each_change_once() -> None:
    damaged = Damaged()
    bench, said = damaged.bench, list[str]()
    controller = bench.controller()
    commentary = Commentary(bench.store, say=said.append)
    commentary.controller = controller
    for how in ("truncated", "of a newer schema"):
        damaged.write(MANIFEST, DAMAGE[how](damaged.whole))
        bench.clock.stop_after = len(bench.clock.waits) + 3
        controller.run(every=1.0)
        for _ in range(3):
            commentary.comment()
    told = [line for line in said if line.startswith("now: ")]
    assert len(told) == 2, told
    assert "not valid JSON" in told[0]
    assert "schema manifest/2 is newer than this Everstep reads (manifest/1); upgrade everstep" in told[1]


def test_what_is_said_of_a_damaged_event_does_not_end_the_controller() -> None:
    damaged = Damaged()
    controller = damaged.bench.controller()
    damaged.bench.settle(controller)
    damaged.write("events/00000002.json", b"{")
    commentary = Commentary(damaged.bench.store, say=lambda line: None)
    commentary.controller = controller
    commentary.comment()
    assert damaged.bench.controller().look() == "blind"


@pytest.mark.parametrize("place", ["create events/", "swap head.json", "create attempt.json", "create order.json"])
def test_while_the_store_is_full_it_goes_on_looking_and_loses_nothing(place: str) -> None:
    damaged = Damaged()
    bench = damaged.bench
    operation, part = place.split()

    def full(now: str, name: str) -> None:
        if now == operation and part in name:
            raise StoreUnavailable(f"{name}: No space left on device; free some space")

    before = bench.store.events()
    controller = bench.controller()
    bench.objects.before = full
    looks = [controller.look() for _ in range(4)]
    assert looks[-1] == "blind"
    assert controller.waiting is not None
    assert "free some space" in controller.waiting.reason
    assert bench.store.start_order(2) is None
    bench.objects.before = lambda operation, name: None
    assert bench.settle(controller) == "waiting"
    events = bench.store.events()
    assert events[: len(before)] == before
    assert [event.action.kind for event in events[len(before) :] if event.action] == ["launch"]
    assert bench.store.start_order(2) is not None
    assert controller.history == damaged.bench.controller().history.__class__() or controller.history.attempt == 2


def test_a_request_that_cannot_be_read_is_refused_and_nothing_else_is_held_up() -> None:
    bench = Bench()
    bench.run.launch("full").train(4)
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    name = bench.run.request("drain")
    whole = bench.objects.read(f"demo/requests/{name}.json").data
    bench.objects.overwrite(f"demo/requests/{name}.json", whole[:-20])
    controller = bench.controller()
    bench.settle(controller)
    (refused,) = [event for event in bench.store.events() if event.kind == "refused"]
    assert refused.request == name
    assert f"requests/{name}.json: not valid JSON" in refused.message
    bench.run.request("drain")
    bench.settle(controller)
    assert bench.store.stop_order(1, "drain") is not None


def test_words_of_a_request_do_not_pass_for_facts() -> None:
    bench = Bench()
    bench.run.launch("full").train(4)
    bench.fleet.ensure_agents(list(bench.fleet.views), from_attempt=1)
    asked = bench.store.request(bench.run.request("pin"))
    words = {"host_gone": "pool/h1", "manifests": "x", "count": "-", "steps": "1", "manifest": "kept"}
    bench.store.create_request(asked.model_copy(update={"arguments": words}))
    controller = bench.controller()
    bench.settle(controller)
    assert controller.history.declared_gone == frozenset()
    noted = [event.details for event in bench.store.events() if event.kind == "answered"]
    assert sorted(noted, key=len) == [{}, {"manifest": "kept"}]


@pytest.mark.parametrize("sha256", ["../../../etc/passwd", "1" * 63, "1" * 65, ""])
def test_an_amendment_to_what_is_no_recipe_s_hash_is_refused(sha256: str) -> None:
    bench = Bench()
    bench.run.launch("full").train(4).commit().die(host=0)
    asked = bench.store.request(bench.run.request("amend"))
    bench.run.state("held")
    bench.store.create_request(asked.model_copy(update={"arguments": {"recipe_sha256": sha256}}))
    bench.settle(bench.controller())
    refused = [event.message for event in bench.store.events() if event.kind == "refused"]
    assert len(refused) == 2
    assert all("does not say which recipe" in message for message in refused)


def test_a_manifest_is_known_by_its_own_words() -> None:
    """The controls above change what they mean to change."""
    whole = Damaged().whole
    assert Manifest.from_bytes(DAMAGE["of another checkpoint"](whole), where="x").next_step == 5
    assert all(change(whole) != whole for change in DAMAGE.values())
