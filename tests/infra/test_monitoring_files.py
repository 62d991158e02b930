"""Prometheus rules and the Grafana dashboard use exactly the metrics in the catalogue."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from ruamel.yaml import YAML

from configs.fallback import Shadow
from tasks.metrics.catalogue import METRICS

INFRA = Path(__file__).parents[2] / "infra"
RULES = INFRA / "prometheus" / "rules.yml"
DASHBOARD = INFRA / "grafana" / "dashboards" / "neorl.json"
OF_PROMETHEUS = {"up": {"job", "instance"}}
"""Metrics that Prometheus adds."""
ATTACHED = {"job", "instance"}
"""Labels that Prometheus adds."""


def read_yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text())


def rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml(RULES)["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield (place, expression) pairs."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            (metric,) = re.fullmatch(r"label_values\((\w+), (?:instance|plant)\)", variable["definition"]).groups()
            yield variable["name"], metric


def nodes(expression: str) -> list[promql_parser.Expr]:
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expression), lambda node: found.append(node))
    return found


def labels_in(expression: str) -> set[str]:
    """Return the labels that an expression selects, matches or groups by."""
    found: set[str] = set()
    for node in nodes(expression):
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql_parser.VectorSelector):
            found |= {matcher.name for matcher in node.matchers.matchers}
        elif isinstance(node, promql_parser.AggregateExpr) and modifier:
            found |= set(modifier.labels)
        elif isinstance(node, promql_parser.BinaryExpr) and modifier and modifier.matching:
            found |= set(modifier.matching.labels)
    return found


def metrics_in(expression: str) -> set[str]:
    return {str(node.name) for node in nodes(expression) if isinstance(node, promql_parser.VectorSelector)}


def labels_of(metrics: set[str]) -> set[str]:
    return {label for name in metrics for label in (METRICS[name].labels if name in METRICS else OF_PROMETHEUS[name])}


def test_rules_and_dashboard_use_every_metric() -> None:
    asked = {metric for _, expression in expressions() for metric in metrics_in(expression)}
    assert asked == METRICS.keys() | OF_PROMETHEUS.keys()


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_expressions_use_existing_labels(place: str, expression: str) -> None:
    metrics = metrics_in(expression)
    assert metrics, place
    assert labels_in(expression) <= labels_of(metrics) | ATTACHED, place


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_alert_texts_use_existing_labels(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    said = " ".join(rule["annotations"][name] for name in ("summary", "description"))
    assert set(re.findall(r"\$labels\.(\w+)", said)) <= labels_of(metrics_in(rule["expr"])) | ATTACHED


def test_dashboard_legends_use_existing_labels() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named <= labels_of(metrics_in(target["expr"])) | ATTACHED, panel["title"]


def test_alerts_and_runs_share_the_threshold_of_worse_data() -> None:
    worse = [rule for rule in rules() if 'data="in_force"' in rule["expr"]]
    assert len(worse) == 3
    for rule in worse:
        (bar,) = [node.val for node in nodes(rule["expr"]) if isinstance(node, promql_parser.NumberLiteral)]
        assert bar == Shadow().worse_by


def test_the_dashboard_can_be_provisioned() -> None:
    """The dashboard has one selectable data source, no server's id, and panels without overlap."""
    found = dashboard()
    # Grafana 12 writes this schema, 13 reads it.
    assert found["schemaVersion"] == 42
    assert "id" not in found
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", found["uid"])
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(source == {"type": "prometheus", "uid": "${source}"} for source in sources)
    for path in (INFRA / "grafana" / "provisioning").rglob("*.yaml"):
        assert read_yaml(path)["apiVersion"] == 1


def test_prometheus_scrapes_the_port_of_neorl_up() -> None:
    from flows.services.service_table import SERVICES

    (job,) = read_yaml(INFRA / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{SERVICES['metrics'].port}"]}]
    assert job["authorization"]["type"] == "Bearer"
    assert {matcher for rule in rules() for matcher in re.findall(r'job="(\w+)"', rule["expr"])} == {job["job_name"]}


def test_promtool_accepts_rules_and_alerts(tmp_path: Path) -> None:
    """Evaluate alerts on synthetic series with promtool."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("Prometheus is not installed: make services")
    shutil.copytree(INFRA / "prometheus", tmp_path, dirs_exist_ok=True)
    shutil.copy(Path(__file__).with_name("alerts.yml"), tmp_path)
    (tmp_path / "neorl.token").write_text("token")
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts.yml"]):
        done = subprocess.run([tool, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
