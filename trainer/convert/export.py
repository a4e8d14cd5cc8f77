"""A checkpoint's weights as Hugging Face has them, a file at a time.

Host memory: one file's tensors and what is being read of them. The folder appears whole or not at all.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from orchestrator.contract.base import ContractError
from orchestrator.contract.manifest import Manifest
from orchestrator.contract.recipe import Model, Recipe
from orchestrator.store.run_store import RunStore
from trainer.checkpoint import orbax_files
from trainer.checkpoint.verify import changed_file
from trainer.convert.config import CONFIG, config_of
from trainer.convert.layout import Piece, pieces
from trainer.convert.weights import INDEX, SINGLE

Dtype = Literal["bfloat16", "float32"]
DTYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
FILE_BYTES = 1 << 30
"""At most, of one file; a tensor that is larger has a file of its own."""

Progress = Callable[[int], None]
"""Bytes just written."""


def export(
    store: RunStore,
    manifest: Manifest,
    out: Path,
    *,
    dtype: Dtype = "bfloat16",
    file_bytes: int = FILE_BYTES,
    progress: Progress = lambda count: None,
) -> tuple[str, ...]:
    """Write ``config.json`` and the weights of a checkpoint into ``out``, which must not be there.

    Returns the names of the weight files.

    Raises:
        ContractError: the checkpoint is not whole or not of this model, or ``out`` exists.
        OSError: it cannot be written.
    """
    recipe = store.recipe(manifest.recipe_sha256)
    if out.exists():
        raise ContractError(f"{out} exists; name a new folder")
    _check(store, manifest, recipe.model)
    out.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        names = _write(store, manifest, recipe.model, made, dtype=dtype, file_bytes=file_bytes, progress=progress)
        config = config_of(recipe.model, context=_context(recipe), dtype=dtype)
        (made / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        made.chmod(0o755)
        made.rename(out)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(made)
        raise
    return names


def weight_bytes(model: Model, dtype: Dtype) -> int:
    """Of all tensors."""
    return sum(_bytes(piece, dtype) for piece in pieces(model))


def _check(store: RunStore, manifest: Manifest, model: Model) -> None:
    for piece in pieces(model):
        entry = manifest.arrays.get(f"params/{piece.path}")
        if entry is None or entry.dtype != "float32" or len(entry.shape) != piece.dimensions:
            raise ContractError(
                f"checkpoint {manifest.name} has no fp32 array params/{piece.path} of an Olmo 3; another trainer "
                "wrote it, which may have an export of its own"
            )
    problem = changed_file(manifest, store)
    if problem is not None:
        raise ContractError(f"checkpoint {manifest.name} is not whole: {problem}; export an earlier one: --step")


def _write(
    store: RunStore,
    manifest: Manifest,
    model: Model,
    folder: Path,
    *,
    dtype: Dtype,
    file_bytes: int,
    progress: Progress,
) -> tuple[str, ...]:
    reader = orbax_files.PartReader(store.checkpoint_address(manifest.folder))
    metadata = {
        "format": "pt",
        "run": manifest.run,
        "checkpoint": manifest.name,
        "params_sha256": manifest.params_sha256,
    }
    groups = list(_files(model, dtype=dtype, most=file_bytes))
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        name = SINGLE if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        tensors = {}
        for piece in group:
            tensors[piece.tensor] = _tensor(reader, piece, dtype)
            weight_map[piece.tensor] = name
            progress(_bytes(piece, dtype))
        save_file(tensors, folder / name, metadata=metadata)
    if len(groups) > 1:
        index = {"metadata": {"total_size": weight_bytes(model, dtype)}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return tuple(dict.fromkeys(weight_map.values()))


def _tensor(reader: orbax_files.PartReader, piece: Piece, dtype: Dtype) -> NDArray[Any]:
    found = reader.read(f"params/{piece.path}", piece.index)
    return np.ascontiguousarray((found.T if piece.transposed else found).astype(DTYPES[dtype]))


def _files(model: Model, *, dtype: Dtype, most: int) -> Iterator[Sequence[Piece]]:
    """Which tensors go into which file."""
    group: list[Piece] = []
    size = 0
    for piece in pieces(model):
        if group and size + _bytes(piece, dtype) > most:
            yield group
            group, size = [], 0
        group.append(piece)
        size += _bytes(piece, dtype)
    yield group


def _bytes(piece: Piece, dtype: Dtype) -> int:
    return len(piece.rows) * len(piece.columns) * int(np.dtype(DTYPES[dtype]).itemsize)


def _context(recipe: Recipe) -> int:
    scaling = recipe.model.rope_scaling
    longest = max(stage.sequence_length for stage in recipe.stages)
    return longest if scaling is None else max(longest, int(scaling.factor * scaling.original_length))
