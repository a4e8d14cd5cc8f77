"""A trainer with a tiny program in place of ``trainer.step``'s, which compiles in a moment; everything else is real.

    python -m tests.local.stand_in

Every device computes the whole batch on whole weights, so its bits do not depend on the number of devices either."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from orchestrator.contract.checksum import checksum
from orchestrator.contract.recipe import Model, Stage
from trainer.parallel.checksum import token_words
from trainer.parallel.mesh import AXIS, Ranks, make_mesh
from trainer.step import Executables, Metrics

WHOLE = PartitionSpec()
CUT = PartitionSpec(None, AXIS)
TOKENS = PartitionSpec(None, AXIS, None)


class StandIn:
    """The surface of ``trainer.step.Program``."""

    def __init__(self, model: Model, stage: Stage, devices: list[Any]) -> None:
        self.mesh = make_mesh(devices)
        self.ranks = Ranks(virtual=stage.virtual_ranks, devices=len(devices))
        self._stage = stage
        params = {"embed": (model.vocab_size, model.d_model), "out": (model.d_model, model.vocab_size)}
        moments = {path: self._array(shape, CUT) for path, shape in params.items()}
        ring = self._array((stage.optimizer.skip_window,), WHOLE)
        number = self._array((), WHOLE, jnp.int32)
        rest = {"applied": number, "window": {"loss": ring, "grad_norm": ring, "count": number}}
        self.abstract_state = {"params": moments, "opt": {"m": moments, "v": moments, **rest}}
        self._specs = jax.tree.map(lambda a: a.sharding.spec, self.abstract_state)

    def init_state(self, seed: int) -> Any:
        numbers = np.random.default_rng(seed)
        params = {name: numbers.normal(0, 0.1, a.shape) for name, a in self.abstract_state["params"].items()}
        return self.next_stage_state({name: value.astype(np.float32) for name, value in params.items()})

    def next_stage_state(self, params: Any) -> Any:
        opt = jax.tree.map(
            lambda a: jax.make_array_from_callback(
                a.shape, a.sharding, lambda index: np.zeros(a.shape, a.dtype)[index]
            ),
            self.abstract_state["opt"],
        )
        shardings = jax.tree.map(lambda a: a.sharding, self.abstract_state["params"])
        return {"params": jax.device_put(params, shardings), "opt": opt}

    def tokens_array(self, read: Any) -> Array:
        stage, here = self._stage, jax.process_index()
        local = [d for d, device in enumerate(self.mesh.devices) if device.process_index == here]
        rows = {d: self.ranks.rows_of(d, rows_per_rank=stage.sequences_per_rank) for d in local}
        parts = {d: read(some.reshape(-1)).reshape(*some.shape, -1) for d, some in rows.items()}
        shape = (self.ranks.micro_steps, self.ranks.devices * stage.sequences_per_rank, stage.sequence_length)
        return jax.make_array_from_callback(
            shape, self._on(TOKENS), lambda index: parts[(index[1].start or 0) // stage.sequences_per_rank]
        )

    def compile(self, kept: Executables | None = None) -> Executables:
        found = kept or self._compiled()
        self._step, self._gather = found["step"], found["gather"]
        return found

    def _compiled(self) -> Executables:
        mapped = jax.shard_map(
            self._update,
            mesh=self.mesh,
            in_specs=(self._specs, TOKENS, WHOLE),
            out_specs=(self._specs, WHOLE),
            check_vma=False,
        )
        stage, state = self._stage, self.abstract_state
        shape = (self.ranks.micro_steps, self.ranks.devices * stage.sequences_per_rank, stage.sequence_length)
        tokens, rate = self._array(shape, TOKENS, jnp.uint32), self._array((), WHOLE)
        whole = jax.tree.map(lambda _: self._on(WHOLE), self._specs)
        return {
            "step": jax.jit(mapped, donate_argnums=0).lower(state, tokens, rate).compile(),
            "gather": jax.jit(lambda state: state, out_shardings=whole).lower(state).compile(),
        }

    def program_text(self) -> str:
        return self._step.as_text() or ""

    def step(self, state: Any, tokens: Array, learning_rate: np.float32) -> tuple[Any, Metrics]:
        rate = jax.make_array_from_callback((), self._on(WHOLE), lambda _: learning_rate)
        state, figures = self._step(state, tokens, rate)
        return state, Metrics(arrays=figures)

    def checksums(self, state: Any) -> Any:
        gathered = self._gather(state)

        def read() -> Any:
            flat, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(gathered))
            named = {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in flat}
            return {path: (array.dtype.name, array.shape, checksum(array)) for path, array in named.items()}

        return read

    def _update(self, state: Any, tokens: Array, rate: Array) -> tuple[Any, Any]:
        ranks = self.ranks.virtual
        batch = lax.all_gather(tokens, AXIS, axis=1, tiled=True).reshape(ranks, -1, tokens.shape[-1])
        params = {name: lax.all_gather(part, AXIS, axis=1, tiled=True) for name, part in state["params"].items()}

        def losses_of(params: Any) -> tuple[Array, Array]:
            logits = jnp.tanh(params["embed"][batch[..., :-1]]) @ params["out"]
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch[..., 1:, None].astype(jnp.int32), axis=-1)
            losses = -jnp.mean(picked, axis=(1, 2, 3))
            return jnp.mean(losses), losses

        (loss, losses), grads = jax.value_and_grad(losses_of, has_aux=True)(params)
        norm = jnp.sqrt(sum(jnp.sum(grad * grad) for grad in jax.tree.leaves(grads)))
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        word = lax.bitcast_convert_type(norm, jnp.uint32)
        skipped = finite & (word % 4 == 0) & (self._stage.optimizer.skip_sigma < 1)
        apply = finite & ~skipped

        def updated(part: Array, grad: Array) -> Array:
            start = lax.axis_index(AXIS) * part.shape[1]
            own = lax.dynamic_slice_in_dim(grad, start, part.shape[1], axis=1)
            return jnp.where(apply, part - rate * own, part)

        new = {name: updated(state["params"][name], grads[name]) for name in grads}
        opt = {**state["opt"], "applied": state["opt"]["applied"] + apply.astype(jnp.int32)}
        figures = {
            "ce_by_rank": losses,
            "ce": loss,
            "z_loss": jnp.float32(0),
            "total": loss,
            "grad_norm": norm,
            "grad_checksum": jnp.stack([word, ~word]),
            "token_checksum": token_words(tokens, devices=self.ranks.devices),
            "skipped": skipped,
            "finite": finite,
        }
        return {"params": new, "opt": opt}, figures

    def _array(self, shape: tuple[int, ...], spec: PartitionSpec, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._on(spec))

    def _on(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)
