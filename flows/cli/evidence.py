"""Commands about evidence: certificate, report, audit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.errors import BadInput, NeoRLError, Refused
from configs.home import Home
from flows.cli.console import AsJson, compiled_anew, emit, group, known_plant

if TYPE_CHECKING:
    from tasks.evidence.certificate import Check
    from tasks.evidence.claims import Statement
    from tasks.evidence.ledger.signing import TrustRoot
    from tasks.registry.registry import Registry

certificate = group("Show or check a safety certificate.")
audit = group("Check that nothing was altered.")

Certificate = Annotated[Path, typer.Argument(help="A certificate, *.dsse.json.")]
Trust = Annotated[Path | None, typer.Option(help="File of pinned public keys, in place of the project's.")]


@certificate.command("show")
def certificate_show(file: Certificate, trust: Trust = None, as_json: AsJson = False) -> None:
    """Print what a certificate says, after checking its signature.

    Example: neorl certificate show certificate.dsse.json
    """
    import json

    from tasks.evidence.certificate import read_certificate
    from tasks.evidence.ledger.signing import TrustRoot

    statement = read_certificate(file, TrustRoot.locate(Home.locate(), trust)).model_dump(mode="json", by_alias=True)
    emit(statement, as_json, [json.dumps(statement, indent=2, sort_keys=True, ensure_ascii=False)])


@certificate.command("verify")
def certificate_verify(
    file: Certificate,
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat every rollout and compare the counts.")] = False,
    challenge: Annotated[str, typer.Option(help="Run the test with this seed (hexadecimal) too.")] = "",
    bundle: Annotated[Path | None, typer.Option(help="The certified bundle; the home's own otherwise.")] = None,
    plant: Annotated[
        str | None, typer.Option(help="To run the test again: the file of a plant of your own, such as plants/tank.py.")
    ] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Check a certificate again, offline; 1 is the exit code when anything does not hold.

    What is not looked at is listed. With --rerun or --challenge composite, simulator, shield, code and lock must be
    here as they were there, for else the test would be one of something else.

    Example: neorl certificate verify certificate.dsse.json --rerun
    """
    from tasks.evidence.certificate import read_certificate, verify_certificate
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import TrustRoot

    home, again = Home.locate(), rerun or bool(challenge)
    try:
        seed = bytes.fromhex(challenge) if challenge else None
    except ValueError as error:
        raise BadInput(
            f"expected hexadecimal digits after --challenge, got '{challenge}': write it as 00ff."
        ) from error
    root = TrustRoot.locate(home, trust)
    statement = read_certificate(file, root)
    folder = bundle or _bundle_of(home, statement)
    found: dict[str, str] = {}
    repeat = None
    if folder is not None:
        from tasks.models.bundles.manifest import stored_digest

        found["composite"] = stored_digest(folder)
    if again:
        if folder is None:
            raise BadInput(
                f"expected the bundle that {file} certifies, got none in {home.root}: name it with --bundle."
            )
        from tasks.certify import materials_here, repeat_with
        from tasks.models.user_code.loading import find_code

        code = find_code(plant, Path.cwd()) if plant else None
        found |= materials_here(folder, code, statement.predicate.scope)
        repeat = repeat_with(folder, code)
    with compiled_anew() if again else nullcontext():
        checks = verify_certificate(
            file,
            root,
            artefacts=found,
            ledger=Ledger.open(home, trust=trust, write=False) if Ledger.exists(home) else None,
            repeat=repeat,
            rerun=rerun,
            challenge=seed,
        )
    _conclude(checks, as_json)


@audit.command("verify")
def audit_verify(
    head: Annotated[list[Path] | None, typer.Option("--head", help="A report or a signed head kept elsewhere.")] = None,
    archive: Annotated[
        Path | None, typer.Option(help="An archive of 'neorl audit export', in place of this home.")
    ] = None,
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Check the ledger and every file that it vouches for; 1 is the exit code when anything was altered.

    The ledger is also held against the signed heads in this home's reports, in MLflow's tags where it answers, and in
    the files given; MLflow's aliases, and the files that it serves, are held against the ledger. An archive is checked
    without a home: with --trust against keys that you were given by another way.

    Example: neorl audit verify --head report-from-last-month.html
    """
    from tasks.evidence.audit.audit import audit as check
    from tasks.evidence.ledger.ledger import Ledger
    from tasks.evidence.ledger.signing import TrustRoot, read_heads, report_heads, signed_by

    heads = [text for path in head or [] for text in read_heads(path)]
    if archive is not None:
        from tasks.evidence.archive.verify import verify_archive

        _conclude(verify_archive(archive, heads, trust), as_json)
        return
    home = Home.locate()
    heads += report_heads(home)
    registry = _answering_registry(home)
    lost: list[Check] = []
    if Ledger.exists(home):
        root = TrustRoot.locate(home, trust)
        kept, lost = _kept_elsewhere(home, root)
        heads += kept
        if registry is not None:
            heads += signed_by(registry.tagged("neorl.ledger_head"), root.keys)
    checks = check(home, heads, trust).checks
    _conclude([*checks, *lost, *_projection(home, registry, trust)], as_json)


@audit.command("export")
def audit_export(
    file: Annotated[Path, typer.Argument(help="The archive to write, such as november.tar.")],
    data: Annotated[bool, typer.Option(help="With the datasets, which may be large; else only their digests.")] = True,
    as_json: AsJson = False,
) -> None:
    """Write the ledger and all that it vouches for into one archive, for an auditor without this home.

    'neorl audit verify --archive' checks it, and so does infra/verify_archive.py, which needs none of our code. The
    same ledger gives the same bytes: tell the SHA-256 that is printed by another way.

    Example: neorl audit export november.tar --no-data
    """
    from tasks.evidence.archive.export import export

    done = export(Home.locate(), file, data)
    left_out = f", {done.left_out} files of datasets left out" if done.left_out else ""
    lines = [f"{done.path}: {done.entries} entries, {done.files} files{left_out}", f"SHA-256 {done.sha256}"]
    emit({**done._asdict(), "path": str(done.path)}, as_json, lines)


def report(
    plant: Annotated[str | None, typer.Argument(help="The plant's name; with a period all plants without it.")] = None,
    first: Annotated[str, typer.Option("--from", help="First day of a period, such as 2026-11-01 (UTC).")] = "",
    last: Annotated[str, typer.Option("--to", help="Last day of it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Name the newest report of a plant; with --from and --to, write the audit report over a period.

    Either is one HTML file that opens offline. That over a period is made to be printed: who was champion when, who
    decided what and why, certificates, data, runs, incidents, and the ledger's signed head; 1 is the exit code when the
    audit found what does not hold, which it tells.

    Example: neorl report chemical_reactor --from 2026-11-01 --to 2026-11-30
    """
    if plant is not None:
        known_plant(plant)
    if first or last:
        _report_period(plant, first, last, as_json)
        return
    if plant is None:
        raise BadInput("expected a plant, or --from and --to, got neither: write 'neorl report chemical_reactor'.")
    folder = Home.locate().root / "reports" / plant
    files = sorted(folder.glob("*.html"), key=lambda p: p.stat().st_mtime)
    if not files:
        raise BadInput(f"expected a report of {plant} in {folder}, got none: 'neorl retrain' writes one.")
    result = {"report": str(files[-1]), "reports": [str(f) for f in files]}
    emit(result, as_json, [str(files[-1])])


def _report_period(plant: str | None, first: str, last: str, as_json: bool) -> None:
    from flows.period_report import report_period

    done = report_period(Home.locate(), _day("--from", first), _day("--to", last), plant)
    said = f"expected every check of the audit to hold, got failures in {', '.join(done.failed)}"
    refusal = f"{said}: the report says what they found." if done.failed else ""
    _tell(refusal, as_json, [str(done.path)], **done.model_dump(mode="json"))


def _day(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        got = f"'{text}'" if text else "none"
        raise BadInput(f"expected a day like 2026-11-01 after {option}, got {got}: write it so.") from error


def _bundle_of(home: Home, statement: Statement) -> Path | None:
    folder = home.root / "bundles" / statement.predicate.scope.plant / statement.composite[:24]
    return folder if folder.is_dir() else None


def _answering_registry(home: Home) -> Registry | None:
    """MLflow, where it answers: an audit needs no server."""
    from flows.services.servers import mlflow_address

    address = mlflow_address(home)
    if address is None:
        return None
    from tasks.registry.registry import Registry

    return Registry(address)


def _kept_elsewhere(home: Home, trust: TrustRoot) -> tuple[list[str], list[Check]]:
    """The signed heads in the folders that are pinned with witnesses, and the folders that are not there."""
    from tasks.evidence.certificate import Check
    from tasks.evidence.witness.client import head_folders, stored_heads
    from tasks.evidence.witness.pinned import pinned

    try:
        folders = head_folders(pinned(home, trust))
    except NeoRLError:
        return [], []  # which the check of witnesses says
    heads = [head for folder in folders for _, found in stored_heads(folder, trust.keys) for head in found]
    lost = [folder for folder in folders if not folder.is_dir()]
    return heads, [Check("heads", False, f"{it}: no such folder, though witnesses.yaml names it") for it in lost]


def _projection(home: Home, registry: Registry | None, trust: Path | None) -> list[Check]:
    """What MLflow says and serves, beside what follows from the ledger."""
    from tasks.evidence.certificate import Check
    from tasks.evidence.ledger.ledger import Ledger

    if registry is None:
        return [Check("aliases", None, "not looked at: MLflow does not answer, start it with 'neorl up'")]
    from tasks.lifecycle.aliases import check_pages, wanted_aliases
    from tasks.registry.serving import check_aliases, check_given_out

    ledger = Ledger.open(home, trust=trust, write=False)
    try:
        entries = ledger.entries()
    except Refused:
        return []  # which the chain has said
    plants = sorted({entry.plant for entry in entries if entry.kind == "candidate"})
    wrong = [found for p in plants for found in check_aliases(p, registry.aliases(p), wanted_aliases(entries, p))]
    wrong += [found for plant in plants for found in check_pages(entries, plant, registry.pages(plant))]
    right = Check("aliases", True, f"MLflow's aliases and pages of {len(plants)} plants say what the ledger says")
    return [*(wrong or [right]), *check_given_out(registry, entries)]


def _conclude(checks: Sequence[Check], as_json: bool) -> None:
    failed = ", ".join(check.name for check in checks if check.passed is False)
    words = {True: "ok  ", False: "FAIL", None: "--  "}
    lines = [f"{words[check.passed]}  {check.name}: {check.detail}" for check in checks]
    said = f"expected every check to hold, got failures in {failed}: restore the originals from a backup."
    _tell(said if failed else "", as_json, lines, passed=not failed, checks=[check._asdict() for check in checks])


def _tell(refusal: str, as_json: bool, lines: Sequence[str], **found: object) -> None:
    """End a command with what it found; a refusal takes it along for programs, which get one object."""
    if not (refusal and as_json):
        emit(found, as_json, lines)
    if refusal:
        error = Refused(refusal)
        error.found = found
        raise error
