"""A recipe's files at submit: the hash of each; of token files the length, and that every id is in the vocabulary."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from orchestrator.cli.errors import BadInput
from orchestrator.cli.hashes import Hashing, Job
from orchestrator.contract.names import FORMS, LONGEST_TOKEN_PATH, TOKEN_PATH
from orchestrator.contract.recipe import Data, InitialWeights, Recipe, Stage, TokenFile, WeightFile
from orchestrator.order.global_order import GlobalOrder, permutation
from orchestrator.order.token_files import count_tokens


def resolve(recipe: Recipe, *, data_root: Path, hashing: Hashing | None = None) -> Recipe:
    """The recipe with hash and length of every token file, and the hashes of its weights; each file is read once.

    Raises:
        BadInput: a file is missing, torn, other than the recipe says, too short for a batch, or has an id that the
            model does not have; names file and remedy. All that can be said without reading a file is said first.
    """
    recipe = with_mixes(recipe, data_root=data_root)
    stages = tuple(_counted(stage, data_root) for stage in recipe.stages)
    weights = _weights(recipe.initial, data_root=data_root) if recipe.initial else []
    jobs = [
        *(Job(data_root / file.path, recipe.model.vocab_size) for stage in stages for file in stage.data.files),
        *(Job(data_root / file.path) for stage in stages for file in stage.data.orders),
        *(Job(path) for path in weights),
    ]
    hashes = (hashing or Hashing()).hashes(jobs)
    initial = recipe.initial and _with_hashes(recipe.initial, data_root / recipe.initial.folder, weights, hashes)
    stages = tuple(_resolved(stage, data_root, hashes) for stage in stages)
    return recipe.model_copy(update={"stages": stages, "initial": initial})


def _counted(stage: Stage, data_root: Path) -> Stage:
    """The stage with the lengths of its files.

    Raises:
        BadInput, ContractError: one is missing, torn, or not as long as the recipe says; all are too short for a batch.
    """
    found = stage.model_copy(update={"data": _changed(stage.data, lambda file: _with_length(file, data_root))})
    try:
        GlobalOrder(found)
    except ValueError as error:
        raise BadInput(str(error)) from error
    return found


def _with_length(file: TokenFile, data_root: Path) -> TokenFile:
    path = data_root / file.path
    if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
        raise BadInput(f"token file {file.path}: must be below data_root; name it relative to {data_root}")
    tokens = count_tokens(path)
    if file.tokens not in (None, tokens):
        raise BadInput(f"{path}: holds {tokens:,} tokens, the recipe says {file.tokens:,}; correct one of them")
    return file.model_copy(update={"tokens": tokens})


def _resolved(stage: Stage, data_root: Path, hashes: Mapping[Path, str]) -> Stage:
    """The stage with the hashes of its files; its written orders are held against what its seed says.

    Raises:
        BadInput: a file has another hash than the recipe says, or a written order is another one.
    """
    data = _changed(stage.data, lambda file: _with_hash(file, data_root / file.path, hashes))
    instances = GlobalOrder(stage).instances
    for epoch, file in enumerate(data.orders):
        wanted = permutation(instances, seed=data.seed + epoch)
        if file.tokens != len(wanted) or file.sha256 != hashlib.sha256(wanted.data).hexdigest():
            raise BadInput(
                f"{data_root / file.path}: is not the order of epoch {epoch} of stage {stage.name}; write it again: "
                "everstep data index"
            )
    return stage.model_copy(update={"data": data})


def _with_hash(file: TokenFile, path: Path, hashes: Mapping[Path, str]) -> TokenFile:
    found = hashes[path]
    if file.sha256 not in (None, found):
        raise BadInput(
            f"{path}: its SHA-256 is {found[:12]}…, the recipe says {file.sha256[:12]}…; restore the file, or correct "
            "the recipe"
        )
    return file.model_copy(update={"sha256": found})


def _changed(data: Data, change: Callable[[TokenFile], TokenFile]) -> Data:
    files = {"files": tuple(map(change, data.files)), "orders": tuple(map(change, data.orders))}
    return data.model_copy(update=files)


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


def _weights(initial: InitialWeights, *, data_root: Path) -> list[Path]:
    """The files of a folder with weights, by name. Raises BadInput: there are none, or one's name is no path."""
    folder = data_root / initial.folder
    inner = folder.iterdir() if folder.is_dir() else ()
    paths = sorted(path for path in inner if path.is_file() and not path.name.startswith("."))
    if not paths:
        raise BadInput(f"{folder}: no files are there; correct the recipe's initial.folder, or data_root")
    wrong = next((path.name for path in paths if not _is_path(path.name)), None)
    if wrong is not None:
        raise BadInput(f"{folder}: file name {wrong!r:.120} {FORMS[TOKEN_PATH]}; take it out of the folder")
    return paths


def _with_hashes(
    initial: InitialWeights, folder: Path, paths: Iterable[Path], hashes: Mapping[Path, str]
) -> InitialWeights:
    files = [WeightFile(name=path.name, sha256=hashes[path]) for path in paths]
    changed = sorted({file.name for file in set(initial.files) ^ set(files)}) if initial.files else []
    if changed:
        raise BadInput(f"{folder / changed[0]}: not as the recipe says; restore the file, or correct initial.files")
    return initial.model_copy(update={"files": tuple(files)})
