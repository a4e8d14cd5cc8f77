"""Reading ``fleet.yaml``."""

from pathlib import Path

from orchestrator.contract import strict_yaml
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
        fields = strict_yaml.read(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ContractError(f"{path}: no such file; name a folder with a fleet.yaml in it") from error
    return LocalFleet.described_by(fields, where=str(path))
