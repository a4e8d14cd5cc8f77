"""A recipe's files at submit: the hash of each; of token files the length, and that every id is in the vocabulary."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from orchestrator.cli.errors import BadInput
from orchestrator.contract.names import FORMS, LONGEST_TOKEN_PATH, TOKEN_PATH
from orchestrator.contract.recipe import InitialWeights, Recipe, Stage, TokenFile, WeightFile
from orchestrator.order.global_order import GlobalOrder, permutation
from orchestrator.order.token_files import count_tokens

CHUNK = 8 << 20
"""Bytes that are read at a time."""

Progress = Callable[[Path, int], None]
"""(file, bytes just read)."""


@dataclass(frozen=True)
class _Measured:
    sha256: str
    tokens: int


def resolve(recipe: Recipe, *, data_root: Path, progress: Progress = lambda path, count: None) -> Recipe:
    """The recipe with hash and length of every token file, and the hashes of its weights; each file is read once.

    Raises:
        BadInput: a file is missing, torn, other than the recipe says, too short for a batch, or has an id that the
            model does not have; names file and remedy.
    """
    recipe = with_mixes(recipe, data_root=data_root)
    known: dict[str, _Measured] = {}
    for file in token_files(recipe):
        if file.path not in known:
            known[file.path] = _measure(data_root, file, vocabulary=recipe.model.vocab_size, progress=progress)
        _compare(data_root / file.path, file, known[file.path])
    initial = recipe.initial and _with_hashes(recipe.initial, data_root=data_root, progress=progress)
    stages = tuple(_resolved(stage, known) for stage in recipe.stages)
    resolved = recipe.model_copy(update={"stages": stages, "initial": initial})
    try:
        return resolved.model_copy(
            update={"stages": tuple(_with_orders(stage, data_root, progress) for stage in resolved.stages)}
        )
    except ValueError as error:
        raise BadInput(str(error)) from error


def _with_orders(stage: Stage, data_root: Path, progress: Progress) -> Stage:
    """The stage with hash and length of its written orders, which are held against what its seed says.

    Raises:
        ValueError: it has too few instances for a batch.
        BadInput: a written order is missing or is another one.
    """
    order = GlobalOrder(stage)
    measured = []
    for epoch, file in enumerate(stage.data.orders):
        path = data_root / file.path
        found = _measure(data_root, file, vocabulary=order.instances, progress=progress)
        _compare(path, file, found)
        wanted = permutation(order.instances, seed=stage.data.seed + epoch)
        if found.tokens != len(wanted) or found.sha256 != hashlib.sha256(wanted.data).hexdigest():
            raise BadInput(
                f"{path}: is not the order of epoch {epoch} of stage {stage.name}; write it again: everstep data index"
            )
        measured.append(file.model_copy(update={"sha256": found.sha256, "tokens": found.tokens}))
    return stage.model_copy(update={"data": stage.data.model_copy(update={"orders": tuple(measured)})})


def with_mixes(recipe: Recipe, *, data_root: Path) -> Recipe:
    """The recipe with the files of its mixes in it. Raises BadInput: a mix is missing, or a line of it is none."""
    stages = []
    for stage in recipe.stages:
        data = stage.data
        if data.mix is not None and not data.files:
            files = tuple(TokenFile(path=path) for path in _paths_of(data_root / data.mix, tokenizer=data.tokenizer))
            data = data.model_copy(update={"files": files})
        stages.append(stage.model_copy(update={"data": data}))
    return recipe.model_copy(update={"stages": tuple(stages)})


def _paths_of(mix: Path, *, tokenizer: str) -> list[str]:
    try:
        lines = mix.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not a text file"
        raise BadInput(f"{mix}: {what}; correct data_root or the recipe's mix") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        label, _, path = line.partition(",")
        path = path.strip().replace("{TOKENIZER}", tokenizer)
        if not label.strip() or not _is_path(path):
            raise BadInput(
                f"{mix}, line {number}: {line!r:.120} is not label,path with a path below data_root"
                + ("; name the recipe's tokenizer" if "{TOKENIZER}" in line and not tokenizer else "")
            )
        found.append(path)
    if not found:
        raise BadInput(f"{mix}: names no token file; correct the recipe's mix")
    return found


def _is_path(path: str) -> bool:
    return len(path) <= LONGEST_TOKEN_PATH and re.fullmatch(TOKEN_PATH, path) is not None


def token_files(recipe: Recipe) -> list[TokenFile]:
    """Of all stages, in order."""
    return [file for stage in recipe.stages for file in stage.data.files]


def total_bytes(recipe: Recipe, *, data_root: Path) -> int:
    """Of all files that are there."""
    paths = {data_root / file.path for file in token_files(with_mixes(recipe, data_root=data_root))}
    if recipe.initial is not None:
        paths |= set(_listed(data_root / recipe.initial.folder))
    return sum(path.stat().st_size for path in paths if path.is_file())


def _listed(folder: Path) -> list[Path]:
    """The files of a folder with weights, by name."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def _with_hashes(initial: InitialWeights, *, data_root: Path, progress: Progress) -> InitialWeights:
    folder = data_root / initial.folder
    paths = _listed(folder)
    if not paths:
        raise BadInput(f"{folder}: no files are there; correct the recipe's initial.folder, or data_root")
    wrong = next((path.name for path in paths if not _is_path(path.name)), None)
    if wrong is not None:
        raise BadInput(f"{folder}: file name {wrong!r:.120} {FORMS[TOKEN_PATH]}; take it out of the folder")
    try:
        files = [WeightFile(name=path.name, sha256=_sha256(path, progress)) for path in paths]
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror or error}; restore the file") from error
    changed = sorted({file.name for file in set(initial.files) ^ set(files)}) if initial.files else []
    if changed:
        raise BadInput(f"{folder / changed[0]}: not as the recipe says; restore the file, or correct initial.files")
    return initial.model_copy(update={"files": tuple(files)})


def _sha256(path: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
            progress(path, len(block))
    return digest.hexdigest()


def _measure(data_root: Path, file: TokenFile, *, vocabulary: int, progress: Progress) -> _Measured:
    path = data_root / file.path
    if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
        raise BadInput(f"token file {file.path}: must be below data_root; name it relative to {data_root}")
    try:
        count_tokens(path)
        return _scan(path, vocabulary=vocabulary, progress=progress)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}; correct data_root or the recipe's path") from error


def _scan(path: Path, *, vocabulary: int, progress: Progress) -> _Measured:
    digest, tokens = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
            ids = np.frombuffer(block, "<u4")
            largest = int(ids.max())
            if largest >= vocabulary:
                raise BadInput(
                    f"{path}: token {tokens + int(ids.argmax()):,} is {largest:,}, but the recipe's vocab_size is "
                    f"{vocabulary:,}; tokenize again with that vocabulary, or correct model.vocab_size"
                )
            tokens += len(ids)
            progress(path, len(block))
    return _Measured(digest.hexdigest(), tokens)


def _compare(path: Path, file: TokenFile, found: _Measured) -> None:
    if file.tokens not in (None, found.tokens):
        raise BadInput(f"{path}: holds {found.tokens:,} tokens, the recipe says {file.tokens:,}; correct one of them")
    if file.sha256 not in (None, found.sha256):
        raise BadInput(
            f"{path}: its SHA-256 is {found.sha256[:12]}…, the recipe says {file.sha256[:12]}…; "
            "restore the file, or correct the recipe"
        )


def _resolved(stage: Stage, known: dict[str, _Measured]) -> Stage:
    files = tuple(
        file.model_copy(update={"sha256": known[file.path].sha256, "tokens": known[file.path].tokens})
        for file in stage.data.files
    )
    return stage.model_copy(update={"data": stage.data.model_copy(update={"files": files})})
