"""Commands `neorl audit verify` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import NeoRLError, Refused
from configs.home import Home
from flows.cli.common import AsJson, emit, emit_checks, group

if TYPE_CHECKING:
    from tasks.evidence.certificate import Check
    from tasks.evidence.ledger.signing import TrustRoot
    from tasks.registry.registry import Registry

audit = group("Verify the ledger and all evidence, or export both for an auditor.")


@audit.command("verify")
def audit_verify(
    head: Annotated[
        list[Path] | None, typer.Option("--head", help="Report or signed head kept outside the home; repeatable.")
    ] = None,
    archive: Annotated[Path | None, typer.Option(help="Archive to verify instead of the home.")] = None,
    trust: Annotated[
        Path | None,
        typer.Option(
            help="File of accepted public keys; default: configs/trust.yaml, else the home's. For --archive the "
            "default is the file in the archive, which proves nothing about the archive's origin."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify the ledger and every file that the ledger names. Exit code 1 if a check fails.

    The ledger is compared with the signed heads in this home's reports, in MLflow's tags and in the files given with
    --head. MLflow's aliases and files are compared with the ledger. To verify an archive, no home is needed: use
    --trust with a file of keys that you received separately from the archive.

    Example: neorl audit verify --head report-from-last-month.html
    """
    from tasks.evidence.audit.audit import audit as check
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import TrustRoot, read_heads, report_heads, signed_by

    heads = [text for path in head or [] for text in read_heads(path)]
    if archive is not None:
        from tasks.evidence.archive.verify import verify_archive

        emit_checks(verify_archive(archive, heads, trust), as_json)
        return
    home = Home.locate()
    heads += report_heads(home)
    registry = _answering_registry(home)
    missing: list[Check] = []
    if Ledger.exists(home):
        root = TrustRoot.locate(home, trust)
        copies, missing = _copied_heads(home, root)
        heads += copies
        if registry is not None:
            heads += signed_by(registry.tagged("neorl.ledger_head"), root.keys)
    checks = check(home, heads, trust).checks
    emit_checks([*checks, *missing, *_mlflow_checks(home, registry, trust)], as_json)


@audit.command("export")
def audit_export(
    file: Annotated[Path, typer.Argument(help="The archive to write, such as november.tar.")],
    data: Annotated[bool, typer.Option(help="Include the datasets, which may be large, or only the digests.")] = True,
    as_json: AsJson = False,
) -> None:
    """Export the ledger, and all files that the ledger names, to an archive for an auditor without this home.

    The auditor verifies the archive with 'neorl audit verify --archive', or with infra/verify_archive.py, which is
    independent of NeoRL's code. Send the printed SHA-256 and the file of keys, trust.yaml, separately from the
    archive. The same ledger always gives the same bytes.

    Example: neorl audit export november.tar --no-data
    """
    from tasks.evidence.archive.export import export
    from tasks.evidence.ledger.signing import TrustRoot

    home = Home.locate()
    done = export(home, file, data)
    left_out = f", {done.left_out} dataset files left out" if done.left_out else ""
    lines = [f"{done.path}: {done.entries} entries, {done.files} files{left_out}", f"SHA-256 {done.sha256}"]
    lines.append(f"next: neorl audit verify --archive {done.path} --trust {TrustRoot.locate(home).source}")
    emit({**done._asdict(), "path": str(done.path)}, as_json, lines)


def _answering_registry(home: Home) -> Registry | None:
    """Return MLflow's registry, or None if MLflow does not answer."""
    from flows.services.servers import mlflow_address

    address = mlflow_address(home)
    if address is None:
        return None
    from tasks.registry.registry import Registry

    return Registry(address)


def _copied_heads(home: Home, trust: TrustRoot) -> tuple[list[str], list[Check]]:
    """Return the signed heads in the folders that witnesses.yaml names, and a failed check for each missing folder."""
    from tasks.evidence.certificate import Check
    from tasks.evidence.witness.client import head_folders, stored_heads
    from tasks.evidence.witness.pinned import pinned

    try:
        folders = head_folders(pinned(home, trust))
    except NeoRLError:
        return [], []  # reported by the check of witnesses
    heads = [head for folder in folders for _, found in stored_heads(folder, trust.keys) for head in found]
    missing = [folder for folder in folders if not folder.is_dir()]
    return heads, [Check("heads", False, f"{folder} in witnesses.yaml does not exist") for folder in missing]


def _mlflow_checks(home: Home, registry: Registry | None, trust: Path | None) -> list[Check]:
    """Compare MLflow's aliases, pages and files with the ledger."""
    from tasks.evidence.certificate import Check
    from tasks.evidence.ledger.ledger import Ledger

    if registry is None:
        return [Check("aliases", None, "skipped, because MLflow does not answer: start it with 'neorl up'")]
    from tasks.lifecycle.aliases import check_pages, wanted_aliases
    from tasks.registry.serving import check_aliases, check_given_out

    ledger = Ledger.open(home, trust=trust, write=False)
    try:
        entries = ledger.entries()
    except Refused:
        return []  # reported by the check of the chain
    plants = sorted({entry.plant for entry in entries if entry.kind == "candidate"})
    checks = [found for p in plants for found in check_aliases(p, registry.aliases(p), wanted_aliases(entries, p))]
    checks += [found for plant in plants for found in check_pages(entries, plant, registry.pages(plant))]
    if not any(check.passed is False for check in checks):
        matched = f"MLflow's aliases and pages of {len(plants)} plants match the ledger"
        checks.insert(0, Check("aliases", True, matched))
    return [*checks, *check_given_out(registry, entries)]
