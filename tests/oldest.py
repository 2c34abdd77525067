"""The oldest versions that pyproject.toml names, as constraints for pip; ``make test-oldest`` tests with them."""

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no reader of TOML, but pip brings one
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"

#: The extras whose packages the library itself uses; tools for tests and documents may be new.
EXTRAS = ("plot", "demo", "diffusers", "ray")


def oldest(pyproject: Path = PYPROJECT) -> list[str]:
    """Return ``name==version`` of everything that the library needs at run time."""
    project = tomllib.loads(pyproject.read_text())["project"]
    needed = [*project["dependencies"], *(item for name in EXTRAS for item in project["optional-dependencies"][name])]
    found = (re.fullmatch(r"([A-Za-z0-9_-]+)>=([0-9.]+)", item) for item in needed)
    return [f"{match[1]}=={match[2]}" for match in found if match is not None]


if __name__ == "__main__":
    print("\n".join(oldest()))
