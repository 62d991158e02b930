"""Bundles of a fleet's sites: each alone gives the site's simulator; its digest binds what the site differs in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from configs.code import Site, SiteOf
from configs.errors import BadInput, Refused
from neorl_core.safety.composite import make_composite
from tasks.files.canonical import canonical_json, digest_json
from tasks.models.bundles.bundle import is_current, load_bundle, save_bundle
from tasks.models.bundles.manifest import MANIFEST, read_manifest
from tasks.models.plants.known import KnownPlant, plant_of_site
from tasks.models.user_code.loading import find_code

LIMIT = "reactor temperature"


def known(cooling: float = 2.15, **changed: Any) -> KnownPlant:
    site = Site(name="reactors_east", constants={"cooling_rate": cooling}, limits={LIMIT: [317.0, 331.0]})
    return plant_of_site(SiteOf(site=site.model_copy(update=changed), plant="chemical_reactor"))


def saved(folder: Path, site: KnownPlant) -> str:
    return save_bundle(folder, make_composite(site.simulator()), site)


def altered(folder: Path, change: dict[str, Any]) -> None:
    """Alter what a bundle says of its site and make every digest inside fit, as someone who knows the format would."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    del manifest["sha256"]
    manifest["site"] |= change
    manifest["code"] = digest_json(manifest["site"])
    (folder / MANIFEST).write_bytes(canonical_json(manifest | {"sha256": digest_json(manifest)}))


def test_a_bundle_alone_gives_the_sites_simulator(tmp_path: Path) -> None:
    digest = saved(tmp_path / "east", known())
    plant, composite = load_bundle(tmp_path / "east", digest)
    assert plant.spec.name == "reactors_east"
    assert (plant.spec.constraints[0].low, plant.spec.constraints[0].high) == (317.0, 331.0)
    assert plant is known().plant
    assert float(composite.model.cooling_rate) == pytest.approx(2.15)
    assert is_current(tmp_path / "east", known())
    assert not is_current(tmp_path / "east", known(2.16))


def test_its_digest_binds_constants_and_limits(tmp_path: Path) -> None:
    sites = {"a": known(), "b": known(2.16), "c": known(limits={}), "d": known(name="reactors_west")}
    assert len({saved(tmp_path / name, site) for name, site in sites.items()}) == 4


def test_another_site_than_the_digest_names_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "east"
    digest = saved(folder, known())
    altered(folder, {"constants": {"cooling_rate": 9.0}})
    with pytest.raises(Refused, match=f"but {digest} is required"):
        load_bundle(folder, digest)
    # Of a forged bundle the composite's own digest is another one, too.
    with pytest.raises(Refused, match="is required"):
        load_bundle(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"constants": {"cooling": 1.0}}, "'cooling' is not a constant of the plant"),
        ({"constants": ["cooling_rate"]}, "has no valid site"),
        ({"plant": 3}, "has no valid site"),
        ({"more": 1}, "has no valid site"),
        ({"limits": {}}, "the limits of reactors_east"),
        ({"code": "00"}, "the code of plant 'chemical_reactor'"),
    ],
)
def test_a_site_that_cannot_be_is_told(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    folder = tmp_path / "east"
    saved(folder, known())
    altered(folder, change)
    with pytest.raises((Refused, BadInput), match=words):
        load_bundle(folder)


def test_a_site_of_a_plant_of_ones_own_needs_its_code(project: Path) -> None:
    code = find_code("plants/tank.py", project)
    site = SiteOf(site=Site(name="tanks_east"), plant="tank", code=code)
    folder = project / "east"
    digest = saved(folder, plant_of_site(site))
    assert read_manifest(folder).own_code == code.digest
    for source in (site, code):
        assert load_bundle(folder, digest, source)[0].spec.name == "tanks_east"
    with pytest.raises(Refused, match="the code of plant"):
        load_bundle(folder, digest)
    other = code.model_copy(update={"digest": "00"})
    with pytest.raises(Refused, match="has digest"):
        load_bundle(folder, digest, other)
