"""Reading ``fleet.yaml``."""

from pathlib import Path

import yaml

from orchestrator.contract.base import ContractError
from orchestrator.fleet.local_fleet import LocalFleet


def read_fleet(folder: Path) -> LocalFleet:
    """The fleet that a folder describes.

    Raises:
        ContractError: there is no ``fleet.yaml``, it is not YAML, or a field does not fit; one line for a person.
        OSError: it is there but cannot be read now.
    """
    path = folder / "fleet.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ContractError(f"{path}: no such file; name a folder with a fleet.yaml in it") from error
    except UnicodeDecodeError as error:
        raise ContractError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    try:
        fields = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ContractError(f"{path}: not valid YAML ({' '.join(str(error).split())}); correct it there") from error
    return LocalFleet.described_by(fields, where=str(path))
