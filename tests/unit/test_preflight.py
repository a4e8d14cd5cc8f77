"""What is read in a compiled program's text, how plans are chosen from it, and what is said of a placement."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestrator.contract.preflight import CompileAnswer, Compiled, Refused, Topology, Unit
from orchestrator.contract.recipe import Recipe, Stage
from tests.unit.run_documents import recipe_of
from trainer.preflight.cost import Collective, cost
from trainer.preflight.fingerprint import compare, fingerprint
from trainer.preflight.hlo import parse
from trainer.preflight.report import Wanted, report
from trainer.preflight.search import Settings, choose

KERNEL = 'custom_call_target="tpu_custom_call"'
WINDOW = 'backend_config={"window_config":{"output_window_bounds":["%s","8"],"estimated_cycles":"%s"}}'


def program(*, tile: str = "64", rows: int = 16, reduced: int = 4, third: str = "multiply", trips: int = 3) -> str:
    """A loop of a product, an asynchronous gather and an exchange; then an update of the shard, and a tree's add."""
    scope = "everstep_reduction"
    return f"""HloModule jit_update, is_scheduled=true

%fused_product (p.0: bf16[16,32], p.1: bf16[32,8]) -> f32[16,8] {{
  %p.0 = bf16[16,32]{{1,0:T(8,128)S(1)}} parameter(0)
  %p.1 = bf16[32,8]{{1,0}} parameter(1)
  ROOT %convolution.1 = f32[16,8]{{1,0}} convolution(%p.0, %p.1), dim_labels=bf_io->bf, metadata={{op_name="jvp/dot"}}
}}

%fused_update (p.2: f32[{rows}], p.3: f32[{rows}]) -> f32[{rows}] {{
  %p.2 = f32[{rows}]{{0}} parameter(0)
  %p.3 = f32[{rows}]{{0}} parameter(1)
  ROOT %{third}.2 = f32[{rows}]{{0}} {third}(%p.2, %p.3), metadata={{op_name="everstep_shard/mul"}}
}}

%fused_tree (p.4: f32[{reduced},2]) -> f32[{reduced}] {{
  %p.4 = f32[{reduced},2]{{1,0}} parameter(0)
  ROOT %add.3 = f32[{reduced}]{{0}} add(%p.4, %p.4), metadata={{op_name="{scope}/add"}}
}}

%gathering (p.5: bf16[2,8]) -> bf16[16,8] {{
  %p.5 = bf16[2,8]{{1,0}} parameter(0)
  ROOT %all-gather.1 = bf16[16,8]{{1,0}} all-gather(%p.5), dimensions={{0}}
}}, execution_thread="sparsecore"

%condition (p.6: (s32[], f32[16,8])) -> pred[] {{
  %p.6 = (s32[], f32[16,8]) parameter(0)
  %constant.1 = s32[] constant({trips})
  %index = s32[] get-tuple-element(%p.6), index=0
  ROOT %compare.1 = pred[] compare(%index, %constant.1), direction=LT
}}

%body (p.7: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {{
  %p.7 = (s32[], f32[16,8]) parameter(0)
  %shard = bf16[2,8]{{1,0}} constant({{...}})
  %x = bf16[16,32]{{1,0}} constant({{...}})
  %w = bf16[32,8]{{1,0}} constant({{...}})
  %gather-start = ((bf16[2,8]), bf16[16,8]) call-start(%shard), async_execution_thread="sparsecore", to_apply=%gathering
  %kernel.1 = (bf16[16,8]{{1,0}}) custom-call(%x), {KERNEL}, frontend_attributes={{metadata={{
"what": "several lines"
}}}}, metadata={{op_name="jvp/kernel"}}
  %product = f32[16,8]{{1,0}} fusion(%x, %w), kind=kOutput, calls=%fused_product, {WINDOW % (tile, 500)}
  %exchange = f32[16,8]{{1,0}} all-to-all(%product), dimensions={{0}}
  ROOT %tuple.1 = (s32[], f32[16,8]) tuple(%p.7, %exchange)
}}

ENTRY %main (a: f32[{rows}], b: f32[{reduced},2]) -> f32[{rows}] {{
  %a = f32[{rows}]{{0}} parameter(0)
  %b = f32[{reduced},2]{{1,0}} parameter(1)
  %start = (s32[], f32[16,8]) tuple(%a)
  %while.1 = (s32[], f32[16,8]) while(%start), condition=%condition, body=%body
  %tree = f32[{reduced}]{{0}} fusion(%b), kind=kLoop, calls=%fused_tree, {WINDOW % ("4", 9223372036854775807)}
  ROOT %update = f32[{rows}]{{0}} fusion(%a, %a), kind=kLoop, calls=%fused_update, {WINDOW % ("8", 70)}
}}
"""


def test_loops_multiply_what_their_body_costs() -> None:
    found = cost(parse(program(trips=5)))
    assert found.matmul_flops == 5 * 2 * 16 * 8 * 32
    assert found.cycles == 5 * 500 + 70
    assert found.collectives == (
        Collective(kind="all-gather", dtype="bf16", asynchronous=True, count=5, bytes=5 * 16 * 8 * 2),
        Collective(kind="all-to-all", dtype="f32", asynchronous=False, count=5, bytes=5 * 16 * 8 * 4),
    )


@pytest.mark.parametrize(
    ("window", "left", "right", "result", "flops"),
    [
        ("", "8,16", "16,4", "8,4", 2 * 8 * 4 * 16),
        # a sum over 4 heads, written as a correlation of which one position is kept
        ("window={size=4 pad=0_0}, ", "8,16,4", "16,4,4", "8,4,1", 2 * 8 * 4 * 16 * 4),
        # an outer product over heads: each position meets one tap, the others padding
        ("window={size=4 pad=3_3 rhs_reversal=1}, ", "8,16,1", "16,4,4", "8,4,4", 2 * 8 * 4 * 16 * 4),
        ("window={size=2 stride=2}, ", "8,16,4", "16,4,2", "8,4,2", 2 * 8 * 4 * 16 * 4),
    ],
)
def test_a_product_is_counted_by_what_it_multiplies(
    window: str, left: str, right: str, result: str, flops: int
) -> None:
    labels = "bf0_io0->bf0" if "size" in window else "bf_io->bf"
    text = f"""HloModule m

ENTRY %main (a: bf16[{left}], b: bf16[{right}]) -> f32[{result}] {{
  %a = bf16[{left}] parameter(0)
  %b = bf16[{right}] parameter(1)
  ROOT %convolution.1 = f32[{result}] convolution(%a, %b), {window}dim_labels={labels}
}}
"""
    assert cost(parse(text)).matmul_flops == flops


def test_a_loop_that_does_not_end_at_a_constant_is_an_error_and_no_guess() -> None:
    with pytest.raises(ValueError, match="a loop whose end is not one constant"):
        cost(parse(program().replace("constant(3)", "parameter(0)")))
    with pytest.raises(ValueError, match="not the text of a compiled program"):
        parse("no program")


def test_a_placement_s_own_shapes_and_names_are_not_in_the_fingerprint() -> None:
    here = fingerprint(parse(program()))
    there = fingerprint(parse(program(rows=64, reduced=32, trips=7).replace("%product", "%other").replace("S(1)", "")))
    assert here.total == 3  # the product, the kernel, the update's multiplication
    assert here.sha256 == there.sha256
    assert compare(here, there).equal == 3


@pytest.mark.parametrize(
    ("other", "label"),
    [
        (program(tile="32"), "f32[16,8]"),
        (program().replace("bf_io->bf", "bf_oi->bf"), "f32[16,8]"),
        (program().replace("%p.0 = bf16[16,32]{1,0:", "%p.0 = bf16[16,32]{0,1:"), "f32[16,8]"),
        (program(third="divide"), "f32[16]"),
        (program().replace("(bf16[16,8]{1,0}) custom-call", "(bf16[16,8]{0,1}) custom-call"), "bf16[16,8]{0,1}"),
    ],
    ids=["tile", "labels", "layout", "operation", "kernel"],
)
def test_what_could_change_a_bit_changes_the_fingerprint_and_is_named(other: str, label: str) -> None:
    here, there = fingerprint(parse(program())), fingerprint(parse(other))
    found = compare(here, there)
    assert (found.equal, len(found.only_here), len(found.only_there)) == (2, 1, 1)
    assert label in found.only_there[0]
    assert here.sha256 != there.sha256


def test_a_sum_over_one_element_is_a_move() -> None:
    plain = fingerprint(parse(program()))
    tree = "  ROOT %add.3 = f32[4]{0} add(%p.4, %p.4), metadata"
    summed = "  %zero = f32[] constant(0)\n  ROOT %add.3 = f32[4]{0} reduce(%p.4, %zero), "
    summed += "dimensions={1}, to_apply=%plus, metadata"
    plus = "%plus (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  ROOT %sum = f32[] add(%x, %x)\n}\n\n"
    text = (
        program()
        .replace(tree, summed)
        .replace("everstep_reduction/", "")
        .replace("%fused_tree (", plus + "%fused_tree (")
    )
    assert fingerprint(parse(text)).total == plain.total + 1
    assert fingerprint(parse(text.replace("f32[4,2]", "f32[4,1]"))).sha256 == plain.sha256


def test_another_kernel_of_the_same_name_is_another_leaf() -> None:
    one, other = (fingerprint(parse(program()), kernels=[source]) for source in ("body", "other"))
    assert compare(one, other).equal == 3
    assert one.sha256 != other.sha256


# --- choosing a plan ---

FULL, QUARTER = Topology.parse("tpu7x:4x8x8"), Topology.parse("tpu7x:4x4x4")
PLANS: tuple[Settings, ...] = ({"remat": "none"}, {"remat": "elementwise"}, {"remat": "layer"})


def fits(*, flops: int = 100, cycles: int = 10, units: Mapping[str, int] | None = None) -> Compiled:
    return Compiled(
        argument_bytes=1,
        temporary_bytes=2,
        peak_bytes=3,
        flops=flops,
        model_flops=100,
        cycles=cycles,
        collectives=(),
        units=tuple(Unit(key=key, count=n, label=f"unit {key}") for key, n in (units or {"a": 2}).items()),
        leaf_sha256="0" * 64,
    )


TOO_LARGE = Refused(reason="RESOURCE_EXHAUSTED: hbm", out_of_memory=True)


class Compiler:
    """Answers from a table; what it was asked is kept."""

    def __init__(self, outcome: Callable[[Topology, str], Compiled | Refused]) -> None:
        self._outcome = outcome
        self.asked: list[str] = []

    def __call__(self, topology: Topology, stage: Stage, settings: Settings) -> CompileAnswer:
        self.asked.append(f"{topology} {settings['remat']}")
        return CompileAnswer(
            devices=4,
            micro_steps=1,
            seconds=1.0,
            versions={},
            sources="",
            outcome=self._outcome(topology, settings["remat"]),
        )


def recipe() -> Recipe:
    return recipe_of({"pretrain": 10})


def chosen(compiler: Compiler) -> Any:
    stage = recipe().stages[0]
    found = choose([(FULL, stage), (QUARTER, stage)], ask=compiler, candidates=PLANS)
    return found.settings["remat"], {str(place): answer.outcome.kind for (place, _), answer in found.answers.items()}


def test_the_plan_of_fewest_flops_that_fits_everywhere_is_chosen() -> None:
    compiler = Compiler(lambda _, remat: fits(flops={"none": 100, "elementwise": 100, "layer": 130}[remat]))
    assert chosen(compiler) == ("none", {"tpu7x:4x4x4": "compiled", "tpu7x:4x8x8": "compiled"})
    assert compiler.asked == [*(f"tpu7x:4x4x4 {plan['remat']}" for plan in PLANS), "tpu7x:4x8x8 none"]


def test_of_plans_with_the_same_flops_the_one_of_fewest_cycles_is_chosen() -> None:
    cycles = {"none": 30, "elementwise": 20, "layer": 10}
    flops = {"none": 1000, "elementwise": 1004, "layer": 1300}
    assert chosen(Compiler(lambda _, remat: fits(flops=flops[remat], cycles=cycles[remat])))[0] == "elementwise"


def test_a_plan_that_one_placement_refuses_gives_way_to_the_next_best() -> None:
    def outcome(topology: Topology, remat: str) -> Compiled | Refused:
        refused = remat == "none" if topology == QUARTER else remat == "elementwise"
        return TOO_LARGE if refused else fits(flops={"none": 100, "elementwise": 110, "layer": 130}[remat])

    assert chosen(Compiler(outcome)) == ("layer", {"tpu7x:4x4x4": "compiled", "tpu7x:4x8x8": "compiled"})


def test_where_no_plan_fits_the_refusal_of_the_smallest_is_kept() -> None:
    remat, answers = chosen(Compiler(lambda topology, _: TOO_LARGE if topology == QUARTER else fits()))
    assert remat == "layer"
    assert answers["tpu7x:4x4x4"] == "refused"


# --- the report ---


def test_bits_will_hold_where_every_unit_is_the_same_and_what_differs_is_named() -> None:
    units = {FULL: {"a": 2, "b": 1}, QUARTER: {"b": 1, "a": 2}, Topology.parse("v5p:4x4x4"): {"a": 2, "c": 1}}
    stage = recipe().stages[0]
    wanted = Wanted(recipe=recipe(), places=[(topology, stage) for topology in units])
    found = report(wanted, ask=Compiler(lambda topology, _: fits(units=units[topology])), at=0.0)
    assert [place.bits for place in found.placements] == ["reference", "equal", "bounded"]
    assert [place.equal_units for place in found.placements] == [3, 3, 2]
    assert (found.placements[2].only_here, found.placements[2].only_there) == (("unit c",), ("unit b",))
    assert set(found.settings) == {"tpu7x", "v5p"}


def test_a_placement_that_does_not_fit_says_nothing_of_bits() -> None:
    stage = recipe().stages[0]
    wanted = Wanted(recipe=recipe(), places=[(FULL, stage), (QUARTER, stage)], pinned={"remat": "none"})
    found = report(wanted, ask=Compiler(lambda topology, _: TOO_LARGE if topology == QUARTER else fits()), at=0.0)
    assert [place.bits for place in found.placements] == ["reference", "unknown"]


# --- topologies ---


@pytest.mark.parametrize("text", ["tpu7x:4x8x8", "2*tpu7x:4x4x4", "v6e:4x4"])
def test_a_topology_is_written_as_it_is_read(text: str) -> None:
    assert str(Topology.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["tpu7x", "tpu7x:", "tpu7x:4", "tpu7x:4x0x4", "0*tpu7x:4x4x4", "x*tpu7x:4x4", "../x:2x2"]
)
def test_what_is_no_topology_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Topology.parse(text)
