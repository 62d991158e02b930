"""Load models from MLflow after comparing every file with the ledger; nothing else is executed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import NeoRLError, Refused
from configs.home import Home
from tasks.evidence.certificate import Check
from tasks.evidence.decisions.champions import champion
from tasks.evidence.decisions.queue import candidate_with
from tasks.evidence.ledger.entry import Entry
from tasks.evidence.ledger.ledger import Ledger
from tasks.files.canonical import digests_in, file_sha256, folder_differences
from tasks.files.provenance import PACKAGES, ROOT
from tasks.references import CandidateRecord, ServedFile, ServedModel
from tasks.registry.registry import Registry
from tasks.registry.upload import import_pyfunc

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel

MODEL_CODE = "policy_model.py"
RESTORE = "restore it from a backup, or retrain, which registers the composite again"


def listed_model(home: Home, registry: Registry, plant: str, version: str) -> ServedModel:
    """Return every file of a version's model with its digest, for the ledger.

    Raises:
        Refused: if the model's code differs from this installation, because listed code is executed later.
    """
    model = registry.version(plant, version).model_id
    with tempfile.TemporaryDirectory() as folder:
        kept = next(home.root.glob(f"mlflow/artifacts/*/models/{model}/artifacts"), None)
        found = digests_in(kept or registry.fetch_model(plant, version, Path(folder)))
    for name, digest in found.items():
        source = _source(name)
        if source is not None and (not source.is_file() or file_sha256(source) != digest):
            raise Refused(f"{name} of version {version} of {plant} in MLflow differs from the uploaded file: {RESTORE}")
    return ServedModel(model=model, contents=tuple(ServedFile(path=p, sha256=d) for p, d in found.items()))


def load_model(
    home: Home, registry: Registry, plant: str, version: str | None = None, trust: Path | None = None
) -> PyFuncModel:
    """Load a version's model as MLflow's pyfunc, after comparing every file's digest with the ledger.

    MLflow's own `load_model` would execute any code that the server sends. This function downloads the files, verifies
    them, and loads the verified copy.

    Args:
        version: number of the version; defaults to the ledger's champion, regardless of MLflow's alias.
        trust: file of pinned public keys; defaults to the project's file, else to the home's file.

    Raises:
        Refused: if there is no champion, the ledger does not have the version, or a file differs. No code of the model
            has been executed then.
    """
    record = named_record(Ledger.open(home, trust=trust, write=False).entries(), plant, version)
    version = record.version
    with tempfile.TemporaryDirectory() as folder:
        fetched = registry.fetch_model(plant, version, Path(folder))
        faults = folder_differences(fetched, named_files(record))
        if faults:
            raise Refused(f"version {version} of {plant} differs from the ledger, got {faults[0]}: {RESTORE}")
        model: PyFuncModel = import_pyfunc().load_model(str(fetched))
    return model


def named_record(entries: Sequence[Entry], plant: str, version: str | None) -> CandidateRecord:
    """Return the ledger's record of a version; without a version, the record of the champion.

    Raises:
        Refused: if there is no champion, or the ledger does not have the version.
    """
    own = [entry for entry in entries if (entry.kind, entry.plant) == ("candidate", plant)]
    if version is not None:
        found = candidate_with(own, version=version)
    elif (now := champion(entries, plant)) is not None:
        version, found = now.body["version"], next((e for e in own if e.digest == now.body["candidate"]), None)
    else:
        raise Refused(f"{plant} has no champion: name a version from 'neorl history {plant}'")
    if found is None:
        raise Refused(f"the ledger has no version '{version}' of {plant}: see `neorl history`")
    return found.read(CandidateRecord)


def named_files(record: CandidateRecord) -> dict[str, str]:
    """Return the ledger's digests of a candidate's model files, by path."""
    return {file.path: file.sha256 for file in record.served.contents}


def check_aliases(plant: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> list[Check]:
    """Compare MLflow's aliases of a plant with the ledger.

    Args:
        found: alias -> version in MLflow.
        wanted: alias -> version according to the ledger.
    """
    wrong = [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]
    return [
        Check(
            "aliases",
            False,
            f"MLflow's {plant}@{name} is {_version(found.get(name))}, by the ledger {_version(wanted.get(name))}: "
            "the next `neorl retrain`, `approve` or `withdraw` corrects it; find out who changed it",
        )
        for name in wrong
    ]


def check_given_out(registry: Registry, entries: Sequence[Entry]) -> list[Check]:
    """Download the models that MLflow's aliases name, and compare them with the ledger.

    It is not enough to check the files in the home, because MLflow's database may name another location.
    """
    from mlflow.exceptions import MlflowException

    checks = []
    for plant in sorted({entry.plant for entry in entries if entry.kind == "candidate"}):
        now = champion(entries, plant)
        for version in sorted(set(registry.aliases(plant).values())):
            own = now is not None and now.body["version"] == version
            try:
                named = named_files(named_record(entries, plant, None if own else version))
                with tempfile.TemporaryDirectory() as folder:
                    faults = folder_differences(registry.fetch_model(plant, version, Path(folder)), named)
            except (NeoRLError, MlflowException, OSError) as error:
                faults = [f"it cannot be downloaded, got '{' '.join(str(error).split())[:200]}'"]
            checks += [Check("served", False, f"MLflow's version {version} of {plant}: {fault}") for fault in faults]
    return checks


def _version(version: str | None) -> str:
    return f"version {version}" if version else "none"


def _source(name: str) -> Path | None:
    """Return the installed file that a model's file is a copy of; None for generated files."""
    if name == MODEL_CODE:
        return Path(__file__).with_name(MODEL_CODE)
    top, _, rest = name.partition("/")
    return ROOT / rest if top == "code" and rest.partition("/")[0] in PACKAGES else None
