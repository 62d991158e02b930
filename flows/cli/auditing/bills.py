"""The command about bills of materials: of a version, and of the lock file."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.console import AsJson, emit, known_plant

if TYPE_CHECKING:
    from tasks.evidence.bills.cyclonedx import Bom

Out = Annotated[Path | None, typer.Option(help="File to write; bom-PLANT-VERSION.cdx.json otherwise.")]


def bom(
    plant: Annotated[str | None, typer.Argument(help="The plant's name.")] = None,
    version: Annotated[str, typer.Option(help="In the registry; the champion's otherwise.")] = "",
    lock: Annotated[
        Path | None, typer.Option(help="A lock file, such as requirements.lock, in place of a plant.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Write the bill of materials (CycloneDX 1.6, JSON) of a version, or of the packages of a lock file.

    That of a version names its files, dataset and code by their digests, has a model card, and holds the certificate
    whole. Every file is held against the ledger first.

    Example: neorl bom chemical_reactor --version 3
    """
    if (plant is None) is (lock is None) or (version and lock):
        raise BadInput("expected a plant or --lock FILE, got both or neither: write 'neorl bom chemical_reactor'.")
    program = metadata.version("neorl")
    if lock is not None:
        from tasks.evidence.bills.lock import lock_bill

        made, name = lock_bill(lock, program), "lock"
    else:
        version, made = _of_version(known_plant(str(plant)), version, program)
        name = f"{plant}-{version}"
    from tasks.files.canonical import write_atomic

    path = write_atomic(out or Path(f"bom-{name}.cdx.json"), made.text().encode())
    found = {"bom": str(path), "serial": made.serialNumber, "components": len(made.components)}
    emit(found, as_json, [str(path)])


def _of_version(plant: str, version: str, program: str) -> tuple[str, Bom]:
    from tasks.evidence.bills.model_bill import model_bill
    from tasks.evidence.decisions.champions import champion
    from tasks.evidence.ledger.ledger import Ledger

    home = Home.locate()
    ledger = Ledger.open(home, write=False)
    if not version:
        now = champion(ledger.entries(), plant)
        if now is None:
            raise BadInput(f"expected a champion of {plant}, got none: name a version with --version.")
        version = str(now.body["version"])
    return version, model_bill(home, ledger, plant, version, program)
