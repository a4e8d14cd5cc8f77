"""One optimizer update on a mesh: the surface that the training loop uses.

``build_program`` joins what decides bits (a ``StepPlan``) with the devices of a placement into a ``Program``: it
initialises the state, lays tokens out, compiles the update once and runs it. Every bit of its results is a function of
the plan; the devices decide only how long it takes.

The state is a nested dict::

    params/…                     fp32, each cut along one axis
    opt/m/…  opt/v/…             first and second moments, laid out like params
    opt/applied                  int32: updates applied, skipped ones left out
    opt/window/{loss,grad_norm}  fp32 [skip_window]   opt/window/count  int32
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from orchestrator.contract.checksum import Checksum
from trainer.model import init
from trainer.model.layers import Weight
from trainer.model.olmo3 import LeafArithmetic, skeleton
from trainer.optim import adamw, skip_step
from trainer.parallel.checksum import array_words, token_words
from trainer.parallel.gather import Travel
from trainer.parallel.leaf import Leaf, PackedModel, by_block, packs_of, sum_of_leaves
from trainer.parallel.mesh import AXIS, Ranks, cut_spec, make_mesh
from trainer.parallel.norms import canonical_rows, global_norm
from trainer.parallel.plan import StepPlan
from trainer.parallel.reduction import after, barrier, by_rank, compiler_options, pairwise_sum, rounding
from trainer.parallel.scopes import SHARD
from trainer.parallel.state_checksums import Executables, ReadChecksums, StateChecksums, by_path

__all__ = ["Metrics", "Program", "ReadRows", "StepPlan", "StepResult", "build_program"]

Tree = Any
"""A nested dict with string keys."""
ReadRows = Callable[[NDArray[np.int64]], NDArray[np.uint32]]
"""Row numbers in the global batch → their tokens, [rows, sequence_length]."""

ReadWeights = Callable[[str, tuple[slice, ...], tuple[int, ...]], NDArray[np.float32]]
"""Path of a parameter, a part of it, its whole shape → the values of the part."""

Index = tuple[slice, ...] | None
"""What jax asks a callback for; its types allow None, which it never passes for a sharded array."""

UPDATE = "update"

TOKENS = PartitionSpec(None, AXIS)
REPLICATED = PartitionSpec()


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A step's figures on the host. Losses are means over the targets of the global batch, or of one rank."""

    ce_by_rank: NDArray[np.float32]
    """[V]."""
    ce: np.float32
    z_loss: np.float32
    total: np.float32
    grad_norm: np.float32
    """Of the mean gradient, before clipping."""
    grad_checksum: Checksum
    """Of the gradient's sum over targets, as V canonical rows (``trainer.parallel.norms``)."""
    token_checksum: Checksum
    """Of the token ids on the devices as [V, sequences_per_rank, length]."""
    skipped: bool
    finite: bool
    """False: total loss or gradient norm is not finite, and nothing of the state has changed."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """A step's figures on the devices, replicated; ``read`` waits for them."""

    arrays: dict[str, Array]

    def read(self) -> StepResult:
        host: dict[str, Any] = jax.device_get(self.arrays)
        for name in ("grad_checksum", "token_checksum"):
            host[name] = (int(host[name][0]), int(host[name][1]))
        for name in ("skipped", "finite"):
            host[name] = bool(host[name])
        return StepResult(**host)


def build_program(plan: StepPlan, devices: Sequence[jax.Device], *, slices: int = 1) -> "Program":
    """The program of a plan on these devices (of all processes; their order does not matter), which make up so many
    slices of equal size.

    Raises:
        ValueError: the number of devices or slices is not a power of two, or that of devices more than the plan's
            virtual ranks.
    """
    return Program(plan, make_mesh(devices), slices=slices)


class Program:
    """A compiled update and what surrounds it. ``compile`` is called once, before ``step`` and ``checksums``."""

    def __init__(self, plan: StepPlan, mesh: Mesh, *, slices: int = 1) -> None:
        self.plan = plan
        self.mesh = mesh
        device = mesh.devices.flat[0]
        _check_order(plan, platform=device.platform, processes=jax.process_count())
        self.compiler_options = compiler_options(device.platform, device.device_kind) if plan.barriers else {}
        self.ranks = Ranks(virtual=plan.stage.virtual_ranks, devices=mesh.devices.size, slices=slices)
        self._leaf = _leaf_of(plan, self.ranks, platform=device.platform)
        self._weights = self._leaf.bones.weights
        self._shapes, self._specs = _state_layout(plan, self._weights)
        self._update: jax.stages.Compiled | None = None
        self._checksums = StateChecksums(by_path(self.abstract_state), mesh=mesh)

    @property
    def micro_steps(self) -> int:
        """Leaves that each device computes one after the other."""
        return self.ranks.micro_steps

    @property
    def abstract_state(self) -> Tree:
        """Nested dict of ``ShapeDtypeStruct`` with the sharding of each array."""
        return jax.tree.map(
            lambda a, spec: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._sharding(spec)),
            self._shapes,
            self._specs,
        )

    def init_state(self, seed: int, *, weights: ReadWeights | None = None) -> Tree:
        """The state before step 0: parameters read by ``weights``, or drawn from ``seed``; a fresh optimizer."""
        std = self.plan.model.init_std

        def param(path: str, weight: Weight, target: jax.ShapeDtypeStruct) -> Array:
            def part(index: Index) -> NDArray[np.float32]:
                if weights is not None:
                    return weights(path, _whole(index), weight.shape)
                return init.draw(weight, _whole(index), path=path, seed=seed, std=std)

            return jax.make_array_from_callback(target.shape, target.sharding, part)

        named = by_path(self._weights)
        targets = by_path(self.abstract_state["params"])
        flat = [param(path, weight, targets[path]) for path, weight in named.items()]
        return self.next_stage_state(jax.tree.unflatten(jax.tree.structure(self._weights), flat))

    def next_stage_state(self, params: Tree) -> Tree:
        """The state at the start of a stage: ``params`` (from any mesh) as they are, a fresh optimizer."""
        abstract = self.abstract_state

        def zeros(target: jax.ShapeDtypeStruct) -> Array:
            def part(index: Index) -> NDArray[Any]:
                shape = [len(range(*p.indices(n))) for p, n in zip(_whole(index), target.shape, strict=True)]
                return np.zeros(shape, target.dtype)

            return jax.make_array_from_callback(target.shape, target.sharding, part)

        params = jax.device_put(params, jax.tree.map(lambda a: a.sharding, abstract["params"]))
        return {"params": params, "opt": jax.tree.map(zeros, abstract["opt"])}

    def tokens_array(self, read: ReadRows) -> Array:
        """The step's tokens on the devices, [micro_steps, P · sequences_per_rank, length].

        ``read`` is called once, for the rows of this process's devices only.
        """
        stage = self.plan.stage
        per_rank, length = stage.sequences_per_rank, stage.sequence_length
        local = [d for d, device in enumerate(self.mesh.devices) if device.process_index == jax.process_index()]
        rows = np.stack([self.ranks.rows_of(d, rows_per_rank=per_rank) for d in local])
        tokens = np.asarray(read(rows.reshape(-1)), dtype=np.uint32).reshape(*rows.shape, length)
        parts = dict(zip(local, tokens, strict=True))
        shape = (self.micro_steps, self.ranks.devices * per_rank, length)
        return jax.make_array_from_callback(
            shape, self._sharding(TOKENS), lambda index: parts[(_whole(index)[1].start or 0) // per_rank]
        )

    def compile(self, kept: Executables | None = None) -> Executables:
        """Lower and compile the update and the checksums, or take what an equal program gave back before."""
        found = kept or self._compiled()
        self._update = found[UPDATE]
        self._checksums.use(found)
        return found

    def _compiled(self) -> Executables:
        update = self.lower().compile(self.compiler_options)
        return {UPDATE: update, **self._checksums.compiled(self.compiler_options)}

    def lower(self) -> jax.stages.Lowered:
        """The update as it goes to the compiler."""
        stage = self.plan.stage
        shape = (self.micro_steps, self.ranks.devices * stage.sequences_per_rank, stage.sequence_length)
        tokens = jax.ShapeDtypeStruct(shape, jnp.uint32, sharding=self._sharding(TOKENS))
        rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=self._sharding(REPLICATED))
        lowered: jax.stages.Lowered = self._mapped_update().lower(self.abstract_state, tokens, rate)
        return lowered

    def program_text(self) -> str:
        """The compiled update, as HLO text."""
        return _ready(self._update).as_text() or ""

    def step(self, state: Tree, tokens: Array, learning_rate: np.float32) -> tuple[Tree, Metrics]:
        """One update. ``state`` is donated: use the one that comes back."""
        rate = jax.make_array_from_callback((), self._sharding(REPLICATED), lambda _: np.float32(learning_rate))
        state, arrays = _ready(self._update)(state, tokens, rate)
        return state, Metrics(arrays=arrays)

    def checksums(self, state: Tree) -> ReadChecksums:
        """Of all arrays, by path; the same on any mesh. Queued on the devices, before any later step."""
        return self._checksums.queue(by_path(state))

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def _mapped_update(self) -> Any:
        plan, leaf, ranks = self.plan, self._leaf, self.ranks

        def update(state: Tree, tokens: Array, rate: Array) -> tuple[Tree, dict[str, Array]]:
            return _update(plan, leaf, ranks, state=state, tokens=tokens, learning_rate=rate)

        mapped = jax.shard_map(
            update,
            mesh=self.mesh,
            in_specs=(self._specs, TOKENS, REPLICATED),
            out_specs=(self._specs, REPLICATED),
            check_vma=False,
        )
        return jax.jit(mapped, donate_argnums=0)


def _check_order(plan: StepPlan, *, platform: str, processes: int) -> None:
    """Raises ValueError: processes might begin collectives of two loops in different orders, and wait for ever."""
    if plan.scan == "block" and platform == "cpu" and processes > 1:
        raise ValueError("scan block is for TPUs: CPU processes need scan layer in the leaf plan of their generation")


def _whole(index: Index) -> tuple[slice, ...]:
    assert index is not None
    return index


def _leaf_of(plan: StepPlan, ranks: Ranks, *, platform: str) -> Leaf:
    bones = skeleton(plan.model)
    return Leaf(
        bones=bones,
        packs=packs_of(bones, blocks=plan.stage.virtual_ranks, together=platform != "tpu"),
        arithmetic=LeafArithmetic(
            attention=plan.attention,
            attention_chunk=plan.attention_chunk,
            remat=plan.remat,
            scan=plan.scan,
            interpret=platform != "tpu",
        ),
        travel=Travel(
            devices=ranks.devices,
            slices=ranks.slices,
            compute_dtype=plan.model.compute_dtype,
            leaf_dtype=plan.leaf_dtype,
            reduction=plan.reduction,
            barriers=plan.barriers,
            ordered=platform == "cpu",
        ),
        z_loss=plan.stage.optimizer.z_loss,
    )


def _state_layout(plan: StepPlan, weights: Tree) -> tuple[Tree, Tree]:
    """Shapes and partition specs of the state."""

    def like_params() -> tuple[Tree, Tree]:
        shapes = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, jnp.float32), weights)
        return shapes, jax.tree.map(lambda w: cut_spec(len(w.shape), w.cut), weights)

    params, specs = like_params()
    number = jax.ShapeDtypeStruct((), jnp.int32)
    ring = jax.ShapeDtypeStruct((plan.stage.optimizer.skip_window,), jnp.float32)
    rest = {"applied": number, "window": {"loss": ring, "grad_norm": ring, "count": number}}
    return (
        {"params": params, "opt": {"m": params, "v": params, **rest}},
        {"params": specs, "opt": {"m": specs, "v": specs, **jax.tree.map(lambda _: REPLICATED, rest)}},
    )


def _update(
    plan: StepPlan, leaf: Leaf, ranks: Ranks, *, state: Tree, tokens: Array, learning_rate: Array
) -> tuple[Tree, dict[str, Array]]:
    """The update inside ``shard_map``: sums over the leaves, figures, the decision, new weights."""
    stage, optimizer = plan.stage, plan.stage.optimizer
    rank_targets = stage.sequences_per_rank * (stage.sequence_length - 1)
    per_target = 1.0 / (rank_targets * ranks.virtual)
    grouped = tokens.reshape(ranks.micro_steps, stage.sequences_per_rank, stage.sequence_length)

    rounded = rounding() if plan.barriers else lambda x: x
    sums = sum_of_leaves(leaf, state["params"], grouped)
    gradient_rows = barrier(canonical_rows(by_block(sums.gradient)))
    losses = by_rank(sums.losses)
    ce, z_loss = rounded(pairwise_sum(losses) * per_target)
    total = ce + z_loss
    grad_norm = per_target * global_norm(gradient_rows)
    ce, z_loss, total, grad_norm = barrier((ce, z_loss, total, grad_norm))

    opt, window = state["opt"], state["opt"]["window"]
    finite = jnp.isfinite(total) & jnp.isfinite(grad_norm)
    skipped = finite & skip_step.is_outlier(window, optimizer, loss=ce, grad_norm=grad_norm, rounded=rounded)
    apply = finite & ~skipped
    scalars = adamw.coefficients(
        optimizer,
        learning_rate=learning_rate,
        grad_norm=grad_norm,
        per_target=per_target,
        applied=opt["applied"],
    )
    # one vector, not four scalars: every small result that passes a barrier is a loop of its own to compile
    vector, apply = barrier((jnp.stack(scalars), apply))
    with jax.named_scope(SHARD):
        params, m, v = _apply(plan, leaf, state, sums.gradient, adamw.Coefficients(*vector), apply, rounded)
    recorded = skip_step.record(window, loss=ce, grad_norm=grad_norm)
    opt = {
        "m": m,
        "v": v,
        "applied": opt["applied"] + apply.astype(jnp.int32),
        "window": jax.tree.map(lambda new, old: jnp.where(finite, new, old), dict(recorded), dict(window)),
    }
    figures = {
        "ce_by_rank": losses[:, 0] * (1.0 / rank_targets),
        "ce": ce,
        "z_loss": z_loss,
        "total": total,
        "grad_norm": grad_norm,
        "grad_checksum": array_words(gradient_rows, cut=0),
        "token_checksum": token_words(
            after(grouped, losses) if leaf.travel.ordered else grouped, devices=ranks.devices
        ),
        "skipped": skipped,
        "finite": finite,
    }
    return {"params": params, "opt": opt}, figures


def _apply(
    plan: StepPlan,
    leaf: Leaf,
    state: Tree,
    gradient: PackedModel,
    scalars: adamw.Coefficients,
    apply: Array,
    rounded: adamw.Rounded,
) -> tuple[Tree, Tree, Tree]:
    """Parameters and moments after the update, one tensor at a time behind barriers."""
    guard: Callable[[Any], Any] = barrier if plan.barriers else lambda value: value
    common: dict[str, Any] = {
        "optimizer": plan.stage.optimizer,
        "scalars": scalars,
        "apply": apply,
        "rounded": rounded,
    }

    def one(weight: Weight, param: Array, first: Array, second: Array, grad: Array) -> tuple[Array, ...]:
        # the parameter is made from the finished moments, not beside them, so that each is updated in place
        first, second = guard(adamw.moments(first, second, grad, **common))
        return guard(adamw.parameter(param, first, second, decay=weight.decay, **common)), first, second

    weights, opt = leaf.bones.weights, state["opt"]
    new = jax.tree.map(one, weights, state["params"], opt["m"], opt["v"], leaf.unpack(guard(gradient)))

    def part(which: int) -> Tree:
        return jax.tree.map(lambda _, three: three[which], weights, new)

    return part(0), part(1), part(2)


def _ready(stage: jax.stages.Compiled | None) -> jax.stages.Compiled:
    if stage is None:
        raise RuntimeError("call compile() before step() and checksums()")
    return stage
