"""Write a package that offers the tests' plant as an entry point, in the form that an installer leaves."""

from __future__ import annotations

from pathlib import Path

OWN = Path(__file__).parent / "own_project" / "plants"


def install(site: Path, name: str = "tank") -> Path:
    """Write package and metadata into a folder of the path.

    Args:
        site: the folder.
        name: name of the plant and of the entry point.
    """
    plant = (OWN / "tank.py").read_text().replace("plants.physics", "tank_package.physics")
    for path, text in (
        ("tank_package/tank.py", plant.replace('name="tank"', f'name="{name}"')),
        ("tank_package/__init__.py", ""),
        ("tank_package/physics/outflow.py", (OWN / "physics" / "outflow.py").read_text()),
        ("tank_package-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tank-package\nVersion: 1\n"),
        ("tank_package-1.dist-info/entry_points.txt", f"[neorl.plants]\n{name} = tank_package.tank:PLANT\n"),
    ):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    return site
