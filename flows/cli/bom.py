"""Command `neorl bom`: bills of materials."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput
from configs.home import Home
from flows.cli.common import AsJson, emit, known_plant

if TYPE_CHECKING:
    from tasks.evidence.bills.cyclonedx import Bom


def bom(
    plant: Annotated[str | None, typer.Argument(help="The plant's name.")] = None,
    version: Annotated[str, typer.Option(help="Version in the registry; by default the champion.")] = "",
    lock: Annotated[Path | None, typer.Option(help="Lock file, such as requirements.lock, instead of a plant.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; by default bom-PLANT-VERSION.cdx.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the bill of materials (CycloneDX 1.6) of a plant's version, or of the packages in a lock file.

    The bill of a version contains the digests of files, dataset and code, a model card, and the certificate. Before
    writing, the command compares every file with the ledger.

    Example: neorl bom chemical_reactor --version 3
    """
    if (plant is None) is (lock is None):
        given = f"got both '{plant}' and '{lock}'" if plant else "got neither"
        raise BadInput(f"name either a plant or --lock FILE, {given}: write 'neorl bom chemical_reactor'.")
    if version and lock:
        raise BadInput(f"--version {version} does not apply to --lock {lock}: omit --version.")
    program = metadata.version("neorl")
    if lock is not None:
        from tasks.evidence.bills.cyclonedx import lock_bill

        bill, name = lock_bill(lock, program), "lock"
    else:
        version, bill = _of_version(known_plant(str(plant)), version, program)
        name = f"{plant}-{version}"
    from tasks.files.canonical import write_atomic

    path = write_atomic(out or Path(f"bom-{name}.cdx.json"), bill.text().encode())
    emit({"bom": str(path), "serial": bill.serialNumber, "components": len(bill.components)}, as_json, [str(path)])


def _of_version(plant: str, version: str, program: str) -> tuple[str, Bom]:
    from tasks.evidence.bills.model_bill import model_bill
    from tasks.evidence.decisions.champions import champion
    from tasks.evidence.ledger.ledger import Ledger

    home = Home.locate()
    ledger = Ledger.open(home, write=False)
    if not version:
        now = champion(ledger.entries(), plant)
        if now is None:
            raise BadInput(f"{plant} has no champion: name a version with --version.")
        version = str(now.body["version"])
    return version, model_bill(home, ledger, plant, version, program)
