"""One compile by the TPU compiler, in a process of its own: it needs no TPU, much memory, and may be ended.

    python -m trainer.preflight.compile [--text FILE] < compile-question.json > compile-answer.json

Exit codes: 0 answered, also where the step does not fit; 2 the question cannot be asked, with the reason on standard
error. With ``--text`` the compiled program's text is kept.
"""

import importlib.util
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.contract.base import ContractError
from orchestrator.contract.flops import attention_flops_a_token, flops_a_token
from orchestrator.contract.preflight import (
    Collectives,
    CompileAnswer,
    Compiled,
    CompileQuestion,
    Refused,
    Topology,
    Unit,
)

if TYPE_CHECKING:
    import jax

    from trainer.preflight.cost import Cost
    from trainer.step import Program

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "tpu7x-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
"""The compiler looks for no TPU and no metadata server, which it would wait for, and shares its lock."""
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
"""The status of an error of XLA, at the beginning of its text."""
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""Of attention's kernels, of which three products in six, forward and backward, are the model's own in each pass: the
backward kernel computes the scores again."""
_KERNEL = re.compile(r"custom_call @tpu_custom_call.*?body\\22: \\22([A-Za-z0-9+/=]+)", re.DOTALL)


def answer(question: CompileQuestion, *, text: Path | None = None) -> CompileAnswer:
    """Raises ContractError: there is no such topology, or no such plan."""
    from jax.errors import JaxRuntimeError

    from trainer.versions import LOADED, NUMERIC_PACKAGES

    program = _program(question)
    started = time.monotonic()
    outcome: Compiled | Refused
    try:
        lowered = program.lower()
        kernels = _KERNEL.findall(lowered.as_text())
        outcome = _compiled(question, program, lowered.compile(program.compiler_options), kernels=kernels, text=text)
    except JaxRuntimeError as error:
        first = str(error).strip().splitlines()[0]
        outcome = Refused(reason=first[:500], out_of_memory=first.startswith(OUT_OF_MEMORY))
    return CompileAnswer(
        devices=program.ranks.devices,
        micro_steps=program.micro_steps,
        seconds=time.monotonic() - started,
        versions={name: LOADED.packages[name] for name in NUMERIC_PACKAGES},
        sources=LOADED.sources,
        outcome=outcome,
    )


def _program(question: CompileQuestion) -> "Program":
    from trainer.parallel.plan import StepPlan
    from trainer.step import build_program

    try:
        plan = StepPlan.from_leaf_settings(question.model, question.stage, settings=question.settings)
        return build_program(plan, _devices(question.topology), slices=question.topology.slices)
    except ValueError as error:
        raise ContractError(f"{question.topology}: stage {question.stage.name}: {error}") from error


def _devices(topology: Topology) -> "list[jax.Device]":
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    if importlib.util.find_spec("libtpu") is None:
        raise ContractError("the TPU compiler is not installed: pip install 'everstep[preflight]'")
    several = {"num_slices": topology.slices} if topology.slices > 1 else {}
    name = f"{topology.generation}:{topology.chips}"
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=name, **several).devices)
    except (JaxRuntimeError, RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ContractError(f"{topology}: the TPU compiler knows no such topology: {said}") from error


def _compiled(
    question: CompileQuestion,
    program: "Program",
    compiled: "jax.stages.Compiled",
    *,
    kernels: list[str],
    text: Path | None,
) -> Compiled:
    from trainer.preflight import hlo
    from trainer.preflight.cost import cost
    from trainer.preflight.fingerprint import fingerprint

    printed = compiled.as_text() or ""
    if text is not None:
        text.write_text(printed)
    parsed = hlo.parse(printed)
    spent, found = cost(parsed), fingerprint(parsed, kernels=kernels)
    memory = compiled.memory_analysis()
    assert memory is not None, "the TPU compiler always says what a program holds"
    stage = question.stage
    tokens = program.micro_steps * stage.sequences_per_rank * stage.sequence_length
    return Compiled(
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        peak_bytes=memory.peak_memory_in_bytes,
        flops=spent.matmul_flops + _kernel_flops(question, spent),
        model_flops=round(flops_a_token(question.model, length=stage.sequence_length) * tokens),
        cycles=spent.cycles,
        collectives=tuple(Collectives(**vars(one)) for one in spent.collectives),
        units=tuple(Unit(key=key, count=n, label=found.labels[key]) for key, n in sorted(found.units.items())),
        leaf_sha256=found.sha256,
    )


def _kernel_flops(question: CompileQuestion, spent: "Cost") -> int:
    """Of attention's kernels over what each position sees; a pass is one layer's for one leaf."""
    model, stage = question.model, question.stage
    one_product = attention_flops_a_token(model, length=stage.sequence_length) / 6
    forward, backward = spent.attention_passes
    products = FORWARD_PRODUCTS * forward + BACKWARD_PRODUCTS * backward
    return round(products / model.n_layers * one_product * stage.sequences_per_rank * stage.sequence_length)


def clean(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which this module is run."""
    flags = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
    return {**{name: value for name, value in environment.items() if name not in flags}, **ENVIRONMENT}


def main(arguments: list[str]) -> int:
    text = Path(arguments[1]) if arguments[:1] == ["--text"] else None
    os.environ.update(ENVIRONMENT)
    try:
        question = CompileQuestion.from_bytes(sys.stdin.buffer.read(), where="standard input")
        found = answer(question, text=text)
    except ContractError as error:
        print(f"everstep: {error}", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(found.to_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
