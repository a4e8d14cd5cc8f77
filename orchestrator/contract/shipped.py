"""The recipes that come with Everstep."""

from pathlib import Path

from orchestrator.contract.base import ContractError


def shipped() -> dict[str, Path]:
    """Their files by name."""
    folder = Path(__file__).parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def recipe_path(recipe: str) -> Path:
    """Of a recipe that is named, or a file. Raises ContractError: there is neither."""
    known = shipped()
    if recipe not in known and not Path(recipe).is_file():
        raise ContractError(f"{recipe}: neither a file nor one of {', '.join(known)}")
    return known.get(recipe, Path(recipe))
