"""The retraining flow: ingest, validate, train, evaluate, certify, register, approve, promote, report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from configs.errors import BadInput, Refused
from configs.home import Home
from configs.run import RunConfig
from flows.checks import checked_run
from flows.cli.summary import champion_record, headline, history_rows
from flows.services.locks import plant_lock, recorded_run
from flows.services.servers import connect, reap_dead_runs
from flows.stages import Stages
from tasks.adapters.files.canonical import digest_json, file_sha256
from tasks.adapters.files.provenance import code_digest, lock_digest
from tasks.adapters.ledger.champions import champion
from tasks.adapters.ledger.ledger import Entry, Ledger

if TYPE_CHECKING:
    from tasks.report import Record


@flow(name="retrain", flow_run_name="retrain {config}")
def retrain(config: str = "configs/chemical_reactor.yaml", data: list[str] | None = None) -> dict[str, Any]:
    """Retrain a plant's policy from its logs, certify it, and promote it by rule.

    Args:
        config: the run's YAML.
        data: files of logs.

    Returns:
        {run, dataset, candidate, gates, certificate, score, champion, seconds, ...}, small JSON.

    Raises:
        NeoRLError: when configuration or data are unusable, the data fail validation, or not even the plant's own
            controller is certified.
    """
    home = Home.locate()
    run = checked_run(Path(config))
    sources = [Path(path) for path in data or []]
    with (
        recorded_run(home, str(flow_run.id), run.plant),
        plant_lock(home, run.plant, run.concurrency, flow_run.name or "", lambda text: print(text, file=sys.stderr)),
    ):
        reap_dead_runs(home)
        retraining = Retraining(home, run, sources)
        try:
            return retraining.result()
        except (BadInput, Refused) as error:
            # What was refused, and why, is part of the plant's history.
            body = {"reason": str(error), "sources": retraining.source_digests}
            Ledger.open(home).append("refusal", body, plant=run.plant)
            raise


class Retraining:
    """One retraining: the references that its stages hand on."""

    def __init__(self, home: Home, run: RunConfig, sources: Sequence[Path]) -> None:
        from tasks.adapters.registry.server import Registry
        from tasks.ingest import source_sha256

        self.home, self.run, self.sources = home, run, sources
        self.services = connect(home)
        self.registry = Registry(self.services.mlflow.url)
        self.stages = Stages(lambda: connect(home))
        self.mapping = file_sha256(run.data.mapping) if run.data.mapping and run.data.mapping.exists() else None
        self.identity = [run.identity(), self.mapping]
        self.source_digests = [source_sha256(path) if path.exists() else str(path) for path in sources]
        # Everything of the run's data section but the mapping's path, which counts by its content.
        self.reading = [run.data.model_dump(mode="json", exclude={"mapping"}), self.mapping]

    def result(self) -> dict[str, Any]:
        """Run all stages."""
        from tasks.promote import reconcile

        self.stages.effect("reconcile", lambda _: reconcile(self.home, self.run.plant, self.registry))
        self.prepare()
        self.learn()
        made_of = [self.dataset["digest"], self.identity, self.population["digest"], self.evaluation["selected"]]
        self.run_key = digest_json([*made_of, self.compared_with, code_digest()])[:16]
        known = self.known_decision()
        if known is not None:
            return self.unchanged(known)
        self.judge()
        return self.conclude()

    def prepare(self) -> None:
        """Logs become a validated dataset."""
        from tasks.ingest import ingest
        from tasks.promote import dataset_before
        from tasks.validate import validate

        run, home = self.run, self.home
        self.dataset = self.stages.cached(
            "ingest",
            [self.source_digests, run.plant, self.reading, code_digest()],
            lambda progress: ingest(home, run, self.sources, progress),
        )
        before = dataset_before(Ledger.open(home).entries(), run.plant, self.dataset["digest"])
        self.validation = self.stages.cached(
            "validate",
            [self.dataset["digest"], before and before["digest"], self.reading, code_digest()],
            lambda progress: validate(home, run, self.dataset, before, progress),
        )
        if not self.validation["passed"]:
            reasons = "; ".join(self.validation["reasons"])
            raise Refused(f"expected a dataset that passes validation, got one that fails: {reasons}")

    def learn(self) -> None:
        """Train the population, and select by off-policy evaluation alone."""
        from neorl_core.plants import PLANTS
        from neorl_core.safety.composite import make_composite
        from tasks.adapters.models.bundle import is_current
        from tasks.evaluation.evaluate import evaluate_population
        from tasks.promote import incumbent
        from tasks.simulate import simulate
        from tasks.training.train import keep_bundle, train

        run, home = self.run, self.home
        made_of = [
            self.dataset["digest"],
            run.train.model_dump(mode="json"),
            run.data.held_out,
            run.seed,
            code_digest(),
        ]
        self.population = self.stages.cached(
            "train", made_of, lambda progress: train(home, run, self.dataset, progress)
        )
        self.fallback = keep_bundle(home, make_composite(PLANTS[run.plant]), run.plant)
        own = [member["digest"] for member in self.population["members"]] + [self.fallback["digest"]]
        before = incumbent(Ledger.open(home).entries(), run.plant, own)
        folder = home.folder("bundles", run.plant) / before.body["composite"][:24] if before else None
        # A champion of other limits is replaced without a comparison: it could not be run on this twin.
        comparable = folder is not None and is_current(folder, PLANTS[run.plant])
        self.incomparable = before is not None and not comparable
        self.compared_with = before.body["composite"] if before and comparable else None
        self.incumbent = {"path": str(folder), "digest": self.compared_with} if self.compared_with else None
        made_of = [
            self.population["digest"],
            run.evaluate.model_dump(mode="json"),
            self.compared_with,
            run.seed,
            run.data.held_out,
            code_digest(),
        ]
        self.evaluation = self.stages.cached(
            "evaluate",
            made_of,
            lambda progress: evaluate_population(home, run, self.dataset, self.population, self.incumbent, progress),
        )
        made_of = [*made_of, self.evaluation["selected"], run.certify.domain]
        self.rollouts = self.stages.cached(
            "simulate",
            made_of,
            lambda progress: simulate(
                home, run, self.population, self.evaluation["selected"], self.incumbent, progress
            ),
        )
        self.member = self.population["members"][self.evaluation["selected"]]

    def known_decision(self) -> Entry | None:
        """The decision of an earlier run with the same inputs; one that waited for a person is made now by the rule."""
        entries = Ledger.open(self.home).entries("decision", self.run.plant)
        found = next((entry for entry in reversed(entries) if entry.body["run_key"] == self.run_key), None)
        if found is not None and self.run.approval == "auto" and found.body["verdict"].endswith("waiting"):
            return None
        return found

    def judge(self) -> None:
        """All gates, in order of cost; an attempt at certification is spent only where the earlier ones passed."""
        from tasks import gates
        from tasks.adapters.models.servability import serve_check
        from tasks.certify import certify

        run, home, stages = self.run, self.home, self.stages
        errors = stages.cached(
            "twin",
            [
                *(self.dataset["digest"], run.data.held_out, run.certify.domain, run.seed),
                *(run.evaluate.rollouts, code_digest()),
            ],
            lambda _: gates.twin_errors(home, run, self.dataset),
        )
        self.gates = [
            gates.data_gate(self.validation),
            gates.twin_gate(errors),
            gates.ope_gate(self.evaluation, run),
            gates.rollouts_gate(self.rollouts, run),
        ]
        if self.evaluation["champion_difference"] is not None:
            self.gates.append(gates.champion_gate(self.evaluation))
        if self.incomparable:
            self.gates.append(gates.gate("champion", True, "not compared: the champion was made for other limits"))
        fallback = stages.effect(
            "certify-fallback", lambda progress: certify(home, run, self.fallback, progress=progress)
        )
        self.gates.append(gates.fallback_gate(fallback))
        candidate, served = None, None
        if gates.all_passed(self.gates):
            candidate = stages.effect(
                "certify-candidate",
                lambda progress: certify(home, run, self.member, self.dataset["digest"], progress),
            )
        self.gates.append(gates.statistical_gate(candidate))
        if gates.all_passed(self.gates):
            served = stages.effect("serve", lambda _: serve_check(Path(self.member["path"]), self.member["digest"]))
        self.gates.append(gates.servability_gate(served))
        self.passed = gates.all_passed(self.gates)
        self.certificates = {"candidate": candidate, "fallback": fallback}

    def conclude(self) -> dict[str, Any]:
        """Register what is proposed, decide by the rule, and say plainly what came of it."""
        from tasks.promote import decide, propose, reconcile

        run, home = self.run, self.home
        self.current = champion(Ledger.open(home).entries(), run.plant)
        entry = self.register(self.member, self.certificates["candidate"])
        # What was logged first stands, should a repeated measurement (latency) have come out otherwise.
        self.passed, self.gates = entry.body["passed"], entry.body["gates"]
        alone = bool(self.certificates["fallback"]["passed"])
        proposed, verdict = propose(entry, self.fallback["digest"], alone, self.current, run.approval == "auto")
        if proposed == "fallback":
            entry = self.register(self.fallback, self.certificates["fallback"])
        if verdict in ("promoted", "fallback") and proposed:
            made = lambda _: {"entry": decide(home, entry, "rule: auto", "every gate passed").digest}  # noqa: E731
            self.stages.effect("promote", made)
        self.stages.effect("aliases", lambda _: reconcile(home, run.plant, self.registry))
        summary = self.stages.effect("report", lambda _: self.report(verdict, entry))
        get_run_logger().info(summary["headline"])
        body = {"run_key": self.run_key, "verdict": verdict, "summary": summary}
        Ledger.open(home).append("decision", body, plant=run.plant)
        return self.answer(verdict, summary)

    def record(
        self, verdict: str, bundle: dict[str, Any], certificate: dict[str, Any] | None, entry: Entry | None
    ) -> Record:
        """What is known by now, as the registry and the report show it."""
        from tasks.report import Record

        ledger = Ledger.open(self.home)
        entries = ledger.entries()
        now = champion(entries, self.run.plant)
        sha256 = file_sha256(Path(certificate["path"])) if certificate else ""
        links = {"Prefect run": self.prefect_url}
        if entry is not None:
            links["MLflow version"] = entry.body["url"]
        if self.validation["data_docs"]:
            links["Data Docs"] = Path(self.validation["data_docs"]).as_uri()
        return Record(
            run=self.run,
            run_key=self.run_key,
            verdict=verdict,
            headline=headline(verdict, self.gates, self.rollouts),
            dataset=self.dataset,
            validation=self.validation,
            population=self.population,
            evaluation={**self.evaluation, "rollouts": self.rollouts},
            certificates=self.certificates,
            gates=self.gates,
            digests={
                "composite": bundle["digest"],
                "dataset": self.dataset["digest"],
                "config": digest_json(self.identity),
                "code": code_digest(),
                "lock": lock_digest(),
                "certificate": sha256,
                "ledger_head": ledger.signed_head(),
            },
            candidate={**entry.body, "digest": entry.body["composite"]} if entry else None,
            champion=None if now is None else champion_record(now, entries),
            links=links,
            ledger=ledger.head(),
            history=history_rows(entries, self.run.plant),
            seconds=self.stages.seconds,
        )

    def register(self, bundle: dict[str, Any], certificate: dict[str, Any] | None) -> Entry:
        """Put a composite into MLflow and log it as a candidate, each once."""
        from tasks.promote import record_candidate
        from tasks.register import register

        alone = bundle is self.fallback
        verdict = "fallback" if alone else "passed" if self.passed else "refused"

        def work(_: Any) -> dict[str, Any]:
            record = self.record(verdict, bundle, certificate, None)
            reference = register(self.home, record, self.registry, Path(bundle["path"]))
            body = {
                **{key: reference[key] for key in ("version", "run_id", "url")},
                "run_key": self.run_key,
                "composite": bundle["digest"],
                "passed": alone or self.passed,
                "gates": [gate for gate in self.gates if gate["name"] == "fallback"] if alone else self.gates,
                "claim": certificate["claim"] if certificate else None,
                "dataset": self.dataset,
                "config": digest_json(self.identity),
                "champion": self.current.digest if self.current else None,
            }
            path = Path(certificate["path"]) if certificate else None
            # Where MLflow keeps its files in this home, the ledger vouches for its copy of the model too.
            model = self.registry.version(self.run.plant, reference["version"])["tags"]["neorl.model_id"]
            copies = self.home.root.glob(f"mlflow/artifacts/*/models/{model}/artifacts/artifacts/bundle")
            bundles = [Path(bundle["path"]), *copies]
            return {"entry": record_candidate(self.home, self.run.plant, body, bundles, path, self.dataset).digest}

        made = self.stages.effect("register-fallback" if alone else "register", work)
        return Ledger.open(self.home).entry(made["entry"])

    def report(self, verdict: str, entry: Entry) -> dict[str, Any]:
        """Write the report, attach it to the MLflow run, and sum the run up."""
        from tasks.register import describe, draw_plots
        from tasks.report import report

        bundle = {"digest": entry.body["composite"]}
        alone = bundle["digest"] == self.fallback["digest"]
        certificate = self.certificates["fallback" if alone else "candidate"]
        record = self.record(verdict, bundle, certificate, entry)
        plots = draw_plots(self.home.folder("runs", self.run.plant, self.run_key, "plots"), record)
        path = report(self.home, record, plots)
        run_id, version = entry.body["run_id"], entry.body["version"]
        self.registry.attach(run_id, {"report": path})
        experiment = self.registry.experiment(self.run.plant)
        picture = f"get-artifact?path=plots%2Ftrajectories.png&run_uuid={run_id}"
        text = describe(record, self.registry.run_url(experiment, run_id), picture)
        tags = {"neorl.verdict": verdict, "neorl.ledger_head": record.digests["ledger_head"]}
        self.registry.annotate(self.run.plant, version, tags, text)
        links = {"prefect": self.prefect_url, "mlflow": entry.body["url"], "report": str(path)}
        create_markdown_artifact(
            f"**{record.headline}**\n\n[MLflow version]({entry.body['url']}) · report: `{path}`\n\n{text}",
            key=f"retrain-{self.run.plant.replace('_', '-')}",
            description=record.headline,
        )
        return {
            "headline": record.headline,
            "links": links,
            "candidate": {"version": version, "composite": entry.body["composite"], "url": entry.body["url"]},
            "gates": self.gates,
            "certificate": certificate,
            "score": self.rollouts["score"],
            "difference": self.rollouts["differences"].get("plant controller"),
            "ope_difference": self.evaluation["difference"],
            "population": self.population["digest"],
            "dataset": self.dataset["digest"],
        }

    def unchanged(self, decision: Entry) -> dict[str, Any]:
        """The same inputs were decided on before: say so, and change nothing."""
        summary = {**decision.body["summary"]}
        summary["headline"] = f"nothing new to promote: the same inputs were decided on at {decision.timestamp}"
        summary["links"] = {**summary["links"], "prefect": self.prefect_url}
        summary["decided"] = decision.body["verdict"]
        return self.answer("unchanged", summary)

    @property
    def prefect_url(self) -> str:
        """Where the UI shows this flow run."""
        return f"{self.services.prefect.url}/runs/flow-run/{flow_run.id}"

    def answer(self, verdict: str, summary: dict[str, Any]) -> dict[str, Any]:
        """The flow's result.

        Raises:
            Refused: when there is no champion, and nothing that waits to become one.
        """
        from tasks.promote import waiting

        entries = Ledger.open(self.home).entries()
        now = champion(entries, self.run.plant)
        queue = [entry.body["version"] for entry in waiting(entries, self.run.plant)]
        if now is None and not queue:
            report = summary["links"]["report"]
            raise Refused(f"expected a certified candidate or fallback, got neither: read {report}.")
        return {
            **summary,
            "waiting": queue,
            "verdict": verdict,
            "run": str(flow_run.id),
            "run_key": self.run_key,
            "plant": self.run.plant,
            "champion": champion_record(now, entries) if now else None,
            "seconds": {name: round(value, 2) for name, value in self.stages.seconds.items()},
            "reused": self.stages.reused,
        }
