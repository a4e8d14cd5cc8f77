"""A recipe's files at submit: the hash of each; of token files the length, and that every id is in the vocabulary."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from orchestrator.cli.errors import BadInput
from orchestrator.cli.hashes import Hashing, Job
from orchestrator.contract.manifest import FileEntry
from orchestrator.contract.names import FORMS, LONGEST_TOKEN_PATH, TOKEN_FILE_PATH, TOKEN_PATH
from orchestrator.contract.recipe import Data, InitialWeights, Recipe, Stage, TokenFile, WeightFile
from orchestrator.order.global_order import GlobalOrder, permutation
from orchestrator.order.token_files import DataRoot, address_of, count_tokens, entries, whole_tokens
from orchestrator.store.objects import NotFound
from orchestrator.store.opening import crc32c_of, is_bucket, open_objects, split_address


def resolve(recipe: Recipe, *, data_root: DataRoot, hashing: Hashing | None = None) -> Recipe:
    """The recipe with what fixes every token file, and the hashes of its weights; each file is read once.

    In a folder that is length and hash, and every id is looked at; in a bucket length, hash and generation as the
    service says them, and nothing is read.

    Raises:
        BadInput: a file is missing, torn, other than the recipe says, too short for a batch, or has an id that the
            model does not have; names file and remedy. All that can be said without reading a file is said first.
        StoreUnavailable: a bucket cannot be asked.
    """
    recipe = with_mixes(recipe, data_root=data_root)
    stages = counted(recipe.stages, data_root=data_root)
    weights = _weights(recipe.initial, data_root=data_root) if recipe.initial else []
    jobs = [Job(path) for path in weights]
    for stage in stages:
        for files, vocabulary in ((stage.data.files, recipe.model.vocab_size), (stage.data.orders, None)):
            addresses = [address_of(file, data_root=data_root) for file in files]
            jobs += [Job(Path(address), vocabulary) for address in addresses if not is_bucket(address)]
    hashes = (hashing or Hashing()).hashes(jobs)
    initial = recipe.initial and _with_hashes(recipe.initial, Path(data_root, recipe.initial.folder), weights, hashes)
    stages = tuple(_resolved(stage, data_root, hashes) for stage in stages)
    return recipe.model_copy(update={"stages": stages, "initial": initial})


def counted(stages: Iterable[Stage], *, data_root: DataRoot) -> tuple[Stage, ...]:
    """The stages with the lengths of their files; of those in buckets also hash and generation.

    Raises:
        BadInput, ContractError: a file is missing, torn, or not as the recipe says; all are too short for a batch.
        StoreUnavailable: a bucket cannot be asked.
    """
    stages = tuple(stages)
    addresses = [
        address_of(file, data_root=data_root) for stage in stages for file in (*stage.data.files, *stage.data.orders)
    ]
    objects = entries(filter(is_bucket, addresses))
    found = tuple(
        stage.model_copy(update={"data": _changed(stage.data, lambda file: _looked_at(file, data_root, objects))})
        for stage in stages
    )
    try:
        for stage in found:
            GlobalOrder(stage)
    except ValueError as error:
        raise BadInput(str(error)) from error
    return found


def _looked_at(file: TokenFile, data_root: DataRoot, objects: Mapping[str, FileEntry]) -> TokenFile:
    address = address_of(file, data_root=data_root)
    there = objects.get(address)
    tokens = count_tokens(Path(address)) if there is None else whole_tokens(address, there.size)
    if file.tokens not in (None, tokens):
        raise BadInput(f"{address}: holds {tokens:,} tokens, the recipe says {file.tokens:,}; correct one of them")
    found = {"crc32c": there and there.crc32c, "generation": there and there.generation}
    for name, value in found.items():
        said = getattr(file, name)
        if said not in (None, value):
            raise BadInput(f"{address}: its {name} is {value}, the recipe says {said}; correct the recipe")
    if there is not None and file.sha256 is not None:
        raise BadInput(f"{address}: a bucket does not tell its SHA-256; take it out of the recipe")
    return file.model_copy(update={"tokens": tokens, **found})


def _resolved(stage: Stage, data_root: DataRoot, hashes: Mapping[Path, str]) -> Stage:
    """The stage with the hashes of its files; its written orders are held against what its seed says.

    Raises:
        BadInput: a file has another hash than the recipe says, or a written order is another one.
    """
    data = _changed(stage.data, lambda file: _with_hash(file, address_of(file, data_root=data_root), hashes))
    instances = GlobalOrder(stage).instances
    for epoch, file in enumerate(data.orders):
        wanted = permutation(instances, seed=data.seed + epoch)
        same = (
            crc32c_of(wanted.data) == file.crc32c
            if file.crc32c
            else hashlib.sha256(wanted.data).hexdigest() == file.sha256
        )
        if file.tokens != len(wanted) or not same:
            raise BadInput(
                f"{address_of(file, data_root=data_root)}: is not the order of epoch {epoch} of stage {stage.name}; "
                "write it again: everstep data index"
            )
    return stage.model_copy(update={"data": data})


def _with_hash(file: TokenFile, address: str, hashes: Mapping[Path, str]) -> TokenFile:
    if is_bucket(address):
        return file
    found = hashes[Path(address)]
    if file.sha256 not in (None, found):
        raise BadInput(
            f"{address}: its SHA-256 is {found[:12]}…, the recipe says {file.sha256[:12]}…; restore the file, or "
            "correct the recipe"
        )
    return file.model_copy(update={"sha256": found})


def _changed(data: Data, change: Callable[[TokenFile], TokenFile]) -> Data:
    files = {"files": tuple(map(change, data.files)), "orders": tuple(map(change, data.orders))}
    return data.model_copy(update=files)


def with_mixes(recipe: Recipe, *, data_root: DataRoot) -> Recipe:
    """The recipe with the files of its mixes in it. Raises BadInput: a mix is missing, or a line of it is none."""
    stages = []
    for stage in recipe.stages:
        data = stage.data
        if data.mix is not None and not data.files:
            where = address_of(TokenFile(path=data.mix), data_root=data_root)
            files = tuple(TokenFile(path=path) for path in _paths_of(where, tokenizer=data.tokenizer))
            data = data.model_copy(update={"files": files})
        stages.append(stage.model_copy(update={"data": data}))
    return recipe.model_copy(update={"stages": tuple(stages)})


def _paths_of(mix: str, *, tokenizer: str) -> list[str]:
    found = []
    for number, line in enumerate(_text_of(mix).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        label, _, path = line.partition(",")
        path = path.strip().replace("{TOKENIZER}", tokenizer)
        if not label.strip() or not _is_path(path, TOKEN_FILE_PATH):
            raise BadInput(
                f"{mix}, line {number}: {line!r:.120} is not label,path with a path below data_root, or in gs://"
                + ("; name the recipe's tokenizer" if "{TOKENIZER}" in line and not tokenizer else "")
            )
        found.append(path)
    if not found:
        raise BadInput(f"{mix}: names no token file; correct the recipe's mix")
    return found


def _text_of(mix: str) -> str:
    try:
        if not is_bucket(mix):
            return Path(mix).read_text(encoding="utf-8")
        bucket, name = split_address(mix)
        return open_objects(bucket).read(name).data.decode()
    except (OSError, UnicodeDecodeError, NotFound) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or (
            "no such object" if isinstance(error, NotFound) else "not a text file"
        )
        raise BadInput(f"{mix}: {what}; correct data_root or the recipe's mix") from error


def _is_path(path: str, pattern: str) -> bool:
    return len(path) <= LONGEST_TOKEN_PATH and re.fullmatch(pattern, path) is not None


def _weights(initial: InitialWeights, *, data_root: DataRoot) -> list[Path]:
    """The files of a folder with weights, by name. Raises BadInput: there are none, or one's name is no path."""
    if is_bucket(str(data_root)):
        raise BadInput(f"initial: weights are read from a folder, and data_root is {data_root}; name a folder there")
    folder = Path(data_root, initial.folder)
    inner = folder.iterdir() if folder.is_dir() else ()
    paths = sorted(path for path in inner if path.is_file() and not path.name.startswith("."))
    if not paths:
        raise BadInput(f"{folder}: no files are there; correct the recipe's initial.folder, or data_root")
    wrong = next((path.name for path in paths if not _is_path(path.name, TOKEN_PATH)), None)
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
