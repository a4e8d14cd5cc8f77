"""The forms of names and paths in documents.

A string of a document that becomes a path, an object's name or a command's argument has one of these types. Whatever a
document says, what is made of it stays inside the folder that it is meant for: documents with ``..``, an absolute path,
a backslash, a control character or an empty part in such a place are refused when they are read. The patterns are
published in the JSON Schemas, so another writer can hold to them.
"""

from typing import Annotated

from pydantic import StringConstraints

_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029"
_PART = rf"(\.{{0,2}}[^./\\{_CONTROL}]|\.{{3}})[^/\\{_CONTROL}]*"
"""Of a path: anything but ``.`` and ``..``."""
_OBJECT_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_MODULE = r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*"
_NAME = r"[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?"

NAME = rf"^{_NAME}$"
OBJECT_NAME = rf"^{_OBJECT_PART}(/{_OBJECT_PART})*$"
_REQUEST_NAME = rf"^{_OBJECT_PART}$"
_CHECKPOINT_FOLDER = rf"^checkpoints(/{_OBJECT_PART})+$"
MANIFEST_NAME = r"^[0-9]{12,18}-a[0-9]{4,9}$"
_FILE_PATH = rf"^{_PART}(/{_PART})*$"
LONGEST_TOKEN_PATH = 1024
TOKEN_PATH = rf"^(\./)?{_PART}(/{_PART})*$"
BUCKET = r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"
TOKEN_FILE_PATH = rf"^((\./)?|{BUCKET}/){_PART}(/{_PART})*$"
_LOCATION = rf"^[^{_CONTROL}]+$"
_LINE = rf"^[^{_CONTROL}]*$"
_ALLOCATION = rf"^{_NAME}-g[0-9]{{1,9}}$"
_ADDRESS = r"^[^\s/\\@\x00-\x1f\x7f-\x9f]+:[0-9]{1,5}$"
_ZYGOTE = rf"^{_MODULE}:{_MODULE}$"
_ARGUMENT = r"^[^\x00]*$"
_GENERATION = r"^[a-z][a-z0-9]{1,15}$"
_SIDES = r"^[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,2}$"

FORMS = {
    NAME: "use lower-case letters, digits and '-' inside, at most 36 characters",
    OBJECT_NAME: "use letters, digits, '.', '_', '-' between '/'",
    _REQUEST_NAME: "use letters, digits, '.', '_', '-'",
    _CHECKPOINT_FOLDER: "must be a folder below checkpoints/, of letters, digits, '.', '_', '-' between '/'",
    MANIFEST_NAME: "must be a checkpoint's name such as 000000000400-a0001",
    _FILE_PATH: "must be below the checkpoint's folder: relative, no '..', backslash or control character",
    TOKEN_PATH: "must be below data_root: name it relative to it, without '..', backslash or control character",
    TOKEN_FILE_PATH: "must be below data_root, relative to it, or gs://bucket/path; without '..', backslash or control "
    "character",
    _LOCATION: "must be a path or address without control characters",
    _LINE: "must have no control characters",
    _ALLOCATION: "must be a run's name and its allocation, such as demo-g1",
    _ADDRESS: "must be host:port",
    _ZYGOTE: "must be two Python modules, <module>:<trainer module>",
    _ARGUMENT: "must not contain a NUL character",
    _GENERATION: "must be a generation of TPUs, such as tpu7x",
    _SIDES: "must be a slice's chips along each side, such as 4x8x8",
}
"""What a person is told of a string that does not match, by pattern."""

Name = Annotated[str, StringConstraints(pattern=NAME)]
"""Of a run, stage, placement, pool, generation or host."""
ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME, max_length=512)]
"""Of an object inside a run's folder."""
RequestName = Annotated[str, StringConstraints(pattern=_REQUEST_NAME, max_length=200)]
ManifestName = Annotated[str, StringConstraints(pattern=MANIFEST_NAME)]
CheckpointFolder = Annotated[str, StringConstraints(pattern=_CHECKPOINT_FOLDER, max_length=512)]
"""Inside the run's folder."""
FilePath = Annotated[str, StringConstraints(pattern=_FILE_PATH, max_length=1024)]
"""Of a checkpoint's file, inside the checkpoint's folder."""
TokenPath = Annotated[str, StringConstraints(pattern=TOKEN_PATH, max_length=LONGEST_TOKEN_PATH)]
"""Of a folder or file below ``data_root``."""
TokenFilePath = Annotated[str, StringConstraints(pattern=TOKEN_FILE_PATH, max_length=LONGEST_TOKEN_PATH)]
"""Of a token file, below ``data_root`` or in any bucket."""
Location = Annotated[str, StringConstraints(pattern=_LOCATION, min_length=1, max_length=4096)]
"""A path that a person chose, anywhere, or an address such as ``gs://…``."""
Line = Annotated[str, StringConstraints(pattern=_LINE, max_length=4096)]
"""Text that is shown as it is."""
AllocationName = Annotated[str, StringConstraints(pattern=_ALLOCATION)]
Address = Annotated[str, StringConstraints(pattern=_ADDRESS, max_length=300)]
"""``host:port``."""
ZygoteModules = Annotated[str, StringConstraints(pattern=_ZYGOTE, max_length=300)]
Argument = Annotated[str, StringConstraints(pattern=_ARGUMENT)]
"""One word of a command."""
Generation = Annotated[str, StringConstraints(pattern=_GENERATION)]
"""Of TPUs, as their compiler names it."""
Sides = Annotated[str, StringConstraints(pattern=_SIDES)]
"""Of a slice, in chips."""
