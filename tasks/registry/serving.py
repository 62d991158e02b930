"""The model that MLflow serves, file by file: nothing of it is executed whose digest the ledger does not name."""

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
    """Every file of a version's model with its digest, as MLflow holds it now, for the ledger to name.

    Args:
        home: where the files may lie, so that they need not be fetched.
        registry: MLflow.
        plant: the registered model.
        version: its number.

    Raises:
        Refused: when its code is not this installation's: what is listed here is executed later.
    """
    model = registry.version(plant, version).model_id
    with tempfile.TemporaryDirectory() as folder:
        kept = next(home.root.glob(f"mlflow/artifacts/*/models/{model}/artifacts"), None)
        found = digests_in(kept or registry.fetch_model(plant, version, Path(folder)))
    for name, digest in found.items():
        source = _source(name)
        if source is not None and (not source.is_file() or file_sha256(source) != digest):
            raise Refused(
                f"expected {name} of version {version} of {plant} as it was uploaded, got another in MLflow: {RESTORE}."
            )
    return ServedModel(model=model, contents=tuple(ServedFile(path=p, sha256=d) for p, d in found.items()))


def load_model(
    home: Home, registry: Registry, plant: str, version: str | None = None, trust: Path | None = None
) -> PyFuncModel:
    """A version's model as MLflow's pyfunc loads it, once every file of it has the digest that the ledger names.

    MLflow's own `load_model` executes whatever lies on the server. This fetches the files first, and loads the copy.

    Args:
        home: of the ledger, which is only read.
        registry: MLflow.
        plant: the registered model.
        version: its number; the ledger's champion without one, whatever MLflow's alias says.
        trust: file of pinned public keys, in place of the project's or the home's.

    Raises:
        Refused: when there is no champion, the ledger does not know the version, or a file of it is another; nothing of
            the model has been executed then.
    """
    record = named_record(Ledger.open(home, trust=trust, write=False).entries(), plant, version)
    version = record.version
    with tempfile.TemporaryDirectory() as folder:
        fetched = registry.fetch_model(plant, version, Path(folder))
        faults = folder_differences(fetched, named_files(record))
        if faults:
            raise Refused(f"expected version {version} of {plant} as the ledger names it, got {faults[0]}: {RESTORE}.")
        model: PyFuncModel = import_pyfunc().load_model(str(fetched))
    return model


def named_record(entries: Sequence[Entry], plant: str, version: str | None) -> CandidateRecord:
    """What the ledger says of a version: of the champion without one, and then of the very candidate that was promoted.

    Raises:
        Refused: when there is no champion, or the ledger does not know the version.
    """
    own = [entry for entry in entries if (entry.kind, entry.plant) == ("candidate", plant)]
    if version is not None:
        found = candidate_with(own, version=version)
    elif (now := champion(entries, plant)) is not None:
        version, found = now.body["version"], next((e for e in own if e.digest == now.body["candidate"]), None)
    else:
        raise Refused(f"expected a champion of {plant}, got none: its own controller is in force.")
    if found is None:
        raise Refused(f"expected a version of {plant} that the ledger names, got '{version}': see `neorl history`.")
    return found.read(CandidateRecord)


def named_files(record: CandidateRecord) -> dict[str, str]:
    """The digests that the ledger names of a candidate's model, by path."""
    return {file.path: file.sha256 for file in record.served.contents}


def check_aliases(plant: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> list[Check]:
    """Hold MLflow's aliases of a plant against those that follow from the ledger.

    Args:
        plant: the registered model.
        found: alias -> version, as MLflow says.
        wanted: as the ledger does.
    """
    wrong = [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]
    return [
        Check(
            "aliases",
            False,
            f"MLflow's {plant}@{name} is {_version(found.get(name))}, by the ledger {_version(wanted.get(name))}: "
            "the next `neorl retrain`, `approve` or `withdraw` puts it right; ask who changed it",
        )
        for name in wrong
    ]


def check_given_out(registry: Registry, entries: Sequence[Entry]) -> list[Check]:
    """Hold the models that MLflow gives out for its aliases against the ledger, wherever it keeps them.

    What lies in the home shows nothing of them: MLflow's own database says where a model is.
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
                faults = [f"expected to fetch it, got '{' '.join(str(error).split())[:200]}'"]
            checks += [Check("served", False, f"MLflow's version {version} of {plant}: {fault}") for fault in faults]
    return checks


def _version(version: str | None) -> str:
    return f"version {version}" if version else "none"


def _source(name: str) -> Path | None:
    """The file of ours that a file of a model is a copy of; None of those that are made for it."""
    if name == MODEL_CODE:
        return Path(__file__).with_name(MODEL_CODE)
    top, _, rest = name.partition("/")
    return ROOT / rest if top == "code" and rest.partition("/")[0] in PACKAGES else None
