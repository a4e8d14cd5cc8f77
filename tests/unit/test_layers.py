"""What each distribution's part may import, beyond the layers that import-linter holds."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax",
    "tensorstore",
    "tensorboardX",
    "tokenizers",
    "trainer",
    "google",
    "gcsfs",
)
"""What a controller is installed without, and the package that needs it."""

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({heavy!r}))  # None: an import of it fails
import orchestrator
for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
    if not module.name.endswith(("__main__", "store.gcs")):
        importlib.import_module(module.name)
"""


def normalised(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def imports_at_any_depth(package: str) -> Iterator[tuple[str, str]]:
    """(top-level module, ``file:line``) of every absolute import below a package, function bodies included."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            yield from ((name.split(".")[0], f"{path.relative_to(ROOT)}:{node.lineno}") for name in names)


def declared(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [
        *project["dependencies"],
        *(line for extra in extras for line in project["optional-dependencies"][extra]),
    ]
    return {normalised(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


@pytest.mark.parametrize(
    ("package", "extras"),
    [("orchestrator", ("data", "export", "gcs")), ("trainer", ("trainer",))],
    ids=["orchestrator", "trainer"],
)
def test_every_third_party_import_is_a_declared_dependency(package: str, extras: tuple[str, ...]) -> None:
    known, owners = declared(*extras), packages_distributions()
    undeclared = [
        f"{where}: {module}"
        for module, where in imports_at_any_depth(package)
        if module not in sys.stdlib_module_names | {"orchestrator", "trainer"}
        and not known & {normalised(owner) for owner in owners.get(module, [module])}
    ]
    assert not undeclared, "add these to pyproject.toml: " + ", ".join(undeclared)


def test_the_orchestrator_imports_where_only_its_base_dependencies_are_installed() -> None:
    program = IMPORT_ALL.format(heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_pins_name_no_address() -> None:
    text = (ROOT / "requirements" / "pins.txt").read_text(encoding="utf-8")
    found = [line for line in text.splitlines() if "://" in line or line.startswith("-") or " @ " in line]
    assert not found
