"""Reading a Hugging Face checkpoint: any part of any of our arrays, without loading the rest."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import ml_dtypes  # noqa: F401 - numpy learns of bfloat16, which safetensors gives
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from orchestrator.contract.base import ContractError
from orchestrator.contract.recipe import Model, WeightFile
from trainer.convert.layout import Piece, pieces

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("BF16", "F16", "F32")


class HuggingFaceWeights:
    """The tensors of a folder, open for reading; a context manager.

    Raises:
        ContractError: a file is missing, damaged, or another model's; names file and tensor.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        self._folder = folder
        self._pieces: defaultdict[str, list[Piece]] = defaultdict(list)
        for piece in pieces(model):
            self._pieces[piece.path].append(piece)
        self._files: dict[str, Any] = {}
        with ExitStack() as stack:
            for name in files_of(folder):
                opened = stack.enter_context(_open(folder / name))
                self._files |= dict.fromkeys(opened.keys(), opened)
            self._check()
            self._opened = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def read(self, path: str, index: tuple[slice, ...], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """The part ``index`` of our array at ``path``, whose whole shape is ``shape``, in fp32; padding is zero."""
        ranges = [range(*part.indices(length)) for part, length in zip(index, shape, strict=True)]
        out = np.zeros([len(part) for part in ranges], np.float32)
        for piece in self._pieces[path]:
            lead, own = (ranges[:1], ranges[1:]) if piece.layer is not None else ([], ranges)
            if lead and piece.layer not in lead[0]:
                continue
            target = out[piece.layer - lead[0].start] if lead and piece.layer is not None else out
            rows, columns = (range(1), own[0]) if piece.vector else own
            self._fill(target.reshape(len(rows), len(columns)), piece, rows=rows, columns=columns)
        return out

    def _fill(self, target: NDArray[np.float32], piece: Piece, *, rows: range, columns: range) -> None:
        """The part of a piece that is in ``target``, which is these rows and columns of our matrix."""
        here = _common(rows, piece.rows), _common(columns, piece.columns)
        if not all(here):
            return
        inside = [
            slice(part.start - of.start, part.stop - of.start)
            for part, of in zip(here, (piece.rows, piece.columns), strict=True)
        ]
        stored = self._files[piece.tensor].get_slice(piece.tensor)
        if piece.vector:
            found = stored[inside[1]]
        else:
            found = stored[inside[1], inside[0]].T if piece.transposed else stored[inside[0], inside[1]]
        place = tuple(
            slice(part.start - of.start, part.stop - of.start) for part, of in zip(here, (rows, columns), strict=True)
        )
        target[place] = found

    def _check(self) -> None:
        """That all tensors are there, of their shapes, and no others."""
        wanted = {piece.tensor: piece for group in self._pieces.values() for piece in group}
        for name, piece in wanted.items():
            if name not in self._files:
                raise ContractError(
                    f"{self._folder}: tensor {name} is missing; the download is incomplete, or another model"
                )
            stored = self._files[name].get_slice(name)
            if tuple(stored.get_shape()) != piece.shape:
                raise ContractError(
                    f"{self._folder}: tensor {name} is {stored.get_shape()}; the recipe's model has {list(piece.shape)}"
                )
            if stored.get_dtype() not in FLOATS:
                raise ContractError(
                    f"{self._folder}: tensor {name} is {stored.get_dtype()}; known are {', '.join(FLOATS)}"
                )
        others = self._files.keys() - wanted.keys()
        if others:
            raise ContractError(f"{self._folder}: tensor {min(others)} is no part of an Olmo 3 of this shape")


def verify_files(folder: Path, files: Iterable[WeightFile]) -> None:
    """Raises ContractError: a file is not what the run was submitted with."""
    for file in files:
        try:
            with (folder / file.name).open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise ContractError(f"{folder / file.name}: {error.strerror or error}; restore the file") from error
        if found != file.sha256:
            raise ContractError(
                f"{folder / file.name}: its SHA-256 is {found[:12]}…, the recipe says {file.sha256[:12]}…; restore the "
                "file that the run was submitted with"
            )


def files_of(folder: Path) -> tuple[str, ...]:
    """Names of a checkpoint's weight files. Raises ContractError: there are none, or one is missing."""
    index = folder / INDEX
    if not index.is_file():
        if (folder / SINGLE).is_file():
            return (SINGLE,)
        raise ContractError(f"{folder}: neither {SINGLE} nor {INDEX} is there; name a folder with a Hugging Face model")
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ContractError(f"{index}: no list of weight files ({error!r}); download it again") from error
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ContractError(f"{folder}: {name} is missing, which {INDEX} names; download it again")
    return tuple(names)


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="np")
    except (SafetensorError, OSError) as error:
        raise ContractError(f"{file}: not a whole safetensors file ({error}); download it again") from error


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))
