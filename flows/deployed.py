"""Flows under an earlier module name, because older prefect.yaml files refer to `flows.deployed`."""

from flows.backfill import backfill
from flows.monitor import monitor
from flows.period_report import report
from flows.promote import promote, rollback
from flows.shadow import shadow

__all__ = ["backfill", "monitor", "promote", "report", "rollback", "shadow"]
