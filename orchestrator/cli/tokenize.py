"""``everstep data tokenize``."""

from collections.abc import Iterable
from pathlib import Path

import click
import yaml

from orchestrator.cli import token_folder
from orchestrator.cli.bars import bar_of_bytes
from orchestrator.cli.documents import text_files
from orchestrator.cli.encoders import BYTES, END_OF_TEXT, ByteEncoder, Encoder, FileEncoder
from orchestrator.cli.errors import BadInput
from orchestrator.cli.options import json_option
from orchestrator.cli.output import print_document, print_lines
from orchestrator.cli.token_folder import MANIFEST, Progress, Source, TokenFolder
from orchestrator.cli.yaml_files import read_yaml
from orchestrator.contract.recipe import Recipe

SHOWN = 20
"""Files of tokens that are printed."""


@click.command()
@click.argument("texts", metavar="TEXTS...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the files.")
@click.option("--tokenizer", default=BYTES, show_default=True, metavar="FILE", help="A tokenizer.json, or bytes.")
@click.option("--field", default="text", show_default=True, metavar="NAME", help="Of a line's object: its text.")
@click.option("--file-tokens", type=click.IntRange(min=1), default=1 << 30, show_default=True, help="In each file.")
@click.option("--end-of-text", metavar="TOKEN", help=f"After each document.  [default: {END_OF_TEXT}; bytes: 256]")
@click.option("--no-end-of-text", is_flag=True, help="Nothing after a document.")
@click.option("--strip", is_flag=True, help="Leave out white space around a document, as dolma does.")
@click.option("--recipe", type=click.Path(path_type=Path), metavar="FILE", help="Its model must have every id.")
@json_option(schema="token-folder")
def tokenize(
    texts: tuple[Path, ...],
    out: Path,
    tokenizer: str,
    field: str,
    file_tokens: int,
    end_of_text: str | None,
    no_end_of_text: bool,
    strip: bool,
    recipe: Path | None,
    as_json: bool,
) -> None:
    """Write text as token files: headerless little-endian uint32, as OLMo-core reads them.

    TEXTS are files or folders: a .txt is a document, and so is each line of a .jsonl, .jsonl.gz or .json.gz. Each is
    followed by the tokenizer's end-of-text token (bytes: 256), as dolma does. All is looked through before anything is
    written; tokens.json has the files' hashes. An interrupted command goes on where its last complete file ended.

    \b
    Examples:
      everstep data tokenize texts/ --out data/wiki --tokenizer tokenizer.json --recipe recipe.yaml
      everstep data tokenize notes.txt --out data

    Exit codes: 0 written, or there already; 2 a text, the tokenizer or what is there is wrong; 3 it cannot be written.
    """
    if str(out).startswith("gs:/"):
        raise BadInput(f"--out {out}: is no folder; name one, then copy it there: gcloud storage cp --recursive")
    encoder = _encoder(tokenizer, end=None if no_end_of_text else end_of_text or END_OF_TEXT)
    if recipe is not None:
        _compare(encoder, read_yaml(recipe, Recipe), where=f"{tokenizer}, {recipe}")
    wanted = TokenFolder(
        tokenizer_sha256=encoder.sha256,
        largest_id=encoder.largest_id,
        end_of_text=encoder.end,
        field=field,
        strip=strip,
        file_tokens=file_tokens,
        sources=tuple(Source.of(path) for path in text_files(texts)),
        documents=0,
    )
    found = _made(out, wanted, encoder)
    if as_json:
        print_document(found)
    else:
        print_lines(_lines(out, found))


def _encoder(tokenizer: str, *, end: str | None) -> Encoder:
    if tokenizer == BYTES:
        return ByteEncoder() if end is not None else ByteEncoder(end=None, largest_id=255)
    return FileEncoder.read(Path(tokenizer), end=end)


def _compare(encoder: Encoder, recipe: Recipe, *, where: str) -> None:
    size = recipe.model.vocab_size
    if encoder.largest_id >= size:
        raise BadInput(
            f"{where}: the tokenizer gives ids up to {encoder.largest_id:,}, and the recipe's vocab_size is {size:,}; "
            "name the model's own tokenizer, or correct model.vocab_size"
        )


def _made(out: Path, wanted: TokenFolder, encoder: Encoder) -> TokenFolder:
    """The complete folder. Raises BadInput: a text is wrong, or the folder was begun with something else."""
    total = sum(source.size for source in wanted.sources)
    with bar_of_bytes() as bar:
        task = bar.add_task("", total=total)

        def progress(path: Path, count: int) -> None:
            bar.update(task, advance=count, description=path.name)

        begun = token_folder.existing(out)
        if begun is None:
            begun = _looked_through(wanted, progress)
            bar.reset(task)
        else:
            _compare_settings(out, begun, wanted)
        if begun.complete:
            return begun
        with token_folder.alone_in(out):
            begun = token_folder.existing(out) or begun  # whoever wrote there before may have done more meanwhile
            return token_folder.write(out, begun, encoder, progress=progress)


def _looked_through(wanted: TokenFolder, progress: Progress) -> TokenFolder:
    """With the number of documents. Raises BadInput: a file or line is wrong, or there is no text."""
    documents = characters = 0
    for source in wanted.sources:
        for text in token_folder.texts(Path(source.path), field=wanted.field, strip=wanted.strip, progress=progress):
            documents += 1
            characters += len(text)
    if not characters:
        raise BadInput(f"{wanted.sources[0].path}: there is nothing to tokenize; name files with text in them")
    return wanted.model_copy(update={"documents": documents})


def _compare_settings(out: Path, begun: TokenFolder, wanted: TokenFolder) -> None:
    settings = ("tokenizer_sha256", "end_of_text", "field", "strip", "file_tokens")
    changed = [name for name in settings if getattr(begun, name) != getattr(wanted, name)]
    changed += _changed_sources(begun.sources, wanted.sources)[:1]
    if changed:
        raise BadInput(
            f"{out / MANIFEST}: the folder was made with another {', '.join(changed)}; repeat the first command to go "
            "on, or name another folder"
        )


def _changed_sources(before: Iterable[Source], after: Iterable[Source]) -> list[str]:
    """Paths that came, went or changed; the order if that is all."""
    one, other = tuple(before), tuple(after)
    changed = sorted({source.path for source in set(one) ^ set(other)})
    return changed or ([] if one == other else ["order of texts"])


def _lines(out: Path, found: TokenFolder) -> list[str]:
    files = [{"path": written.file.path} for written in found.written]
    lines = [
        f"# {found.documents:,} documents, {found.tokens:,} tokens in {len(files):,} files in {out}",
        f"# ids up to {found.largest_id:,}: the model's vocab_size is at least {found.largest_id + 1:,}",
    ]
    if len(files) <= SHOWN:
        lines += ["# in a stage's data:", yaml.safe_dump({"files": files}, sort_keys=False, width=200).rstrip()]
    return lines
