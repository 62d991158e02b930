"""Certification on a Dask cluster of processes: the counts of one process, to the last bit, whatever the workers do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.errors import BadInput, Refused, ServiceMissing
from tasks.evaluation import cluster
from tasks.evaluation.claims import claim_of
from tasks.evaluation.cluster import in_order
from tasks.evidence.claims import Claim
from tests.sample_record import write_bundle
from tests.servers import dask, free_port
from tests.small_data import PLANT, reactor_run

PROJECT = Path(__file__).parents[3]
WORKERS = 4


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dask(tmp_path_factory.mktemp("dask") / "cluster", WORKERS) as found:
        yield found


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "sample"
    write_bundle(folder)
    return folder


def small_claim() -> Claim:
    from tasks.models.plants.known import plant_named

    run = reactor_run(certify={"p0": 0.02, "max_episodes": 600})
    return claim_of(plant_named(PLANT).simulator(), run).model_copy(update={"batch": 64})


@pytest.mark.slow
def test_four_processes_count_what_one_counts(bundle: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.evaluation.relowering import programs_of
    from tasks.evaluation.repetition import count_violations

    said, seed = small_claim(), b"\x07" * 32
    programs = programs_of(bundle, None, said)

    def counted() -> object:
        return count_violations(programs.episode, programs.arguments, said, seed, 0.025)

    alone = counted()
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", address)
    assert counted() == alone


def test_results_come_in_the_order_of_their_arguments(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", address)
    with cluster.cluster() as client:
        assert client is not None
        # The first ones take longest.
        results = in_order(client, _later, range(12))
        assert list(results) == [i * i for i in range(12)]
        endless = in_order(client, _later, iter(int, 1))
        assert [next(endless) for _ in range(3)] == [0, 0, 0]
        endless.close()


def _later(number: int) -> int:
    import time

    time.sleep(0.05 * max(0, 4 - number))
    return number * number


def test_a_task_that_kills_its_workers_has_no_result(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", address)
    with cluster.cluster() as client:
        assert client is not None
        assert list(in_order(client, _deadly, [1, 2, 3])) == [1, None, 3]


def _deadly(number: int) -> int:
    if number == 2:
        os._exit(1)
    return number


def test_a_worker_with_other_sources_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", address)
    other = ("0" * 64, *cluster.identity()[1:])
    monkeypatch.setattr(cluster, "identity", lambda: other)
    with cluster.cluster() as client:
        assert client is not None
        with pytest.raises(Refused, match=r"differ from this machine in sources: start them from the same image"):
            list(in_order(client, _later, [1]))


def test_addresses_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", "tcp://10.0.0.7:8786")
    with pytest.raises(BadInput, match="tls://"), cluster.cluster():
        pass
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", "somewhere")
    with pytest.raises(BadInput, match="got no URL"), cluster.cluster():
        pass
    monkeypatch.setattr(cluster, "CALL", "1s")
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", f"tcp://127.0.0.1:{free_port()}")
    with pytest.raises(ServiceMissing, match="start a scheduler there, or unset"), cluster.cluster():
        pass
    monkeypatch.delenv("NEORL_DASK_SCHEDULER")
    with cluster.cluster() as client:
        assert client is None


def test_a_fleet_asks_of_the_cluster_what_others_ask(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect_dask.task_runners import DaskTaskRunner

    from flows.fleet import runner_of

    monkeypatch.setattr(cluster, "CALL", "1s")
    for refused, told in (
        ("tcp://10.0.0.7:8786", r"NEORL_DASK_SCHEDULER must begin with tls://"),
        (f"tcp://127.0.0.1:{free_port()}", "start a scheduler there, or unset"),
    ):
        monkeypatch.setenv("NEORL_DASK_SCHEDULER", refused)
        with pytest.raises((BadInput, ServiceMissing), match=told), runner_of(2, None):
            pass
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", address)
    with runner_of(2, None) as runner:
        assert isinstance(runner, DaskTaskRunner)
        assert runner.client.scheduler is not None
        assert runner.client.scheduler.address == address
    monkeypatch.setattr(cluster, "lock_digest", lambda: "0" * 64)
    with pytest.raises(Refused, match=r"differ from this machine in lock file"), runner_of(2, None):
        pass


def test_a_task_of_the_cluster_waits_for_no_other(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fleet's site is retrained by such a task: were all workers to wait for further tasks, nobody would work.
    monkeypatch.setenv("NEORL_DASK_SCHEDULER", address)
    with cluster.cluster() as client:
        assert client is not None
        assert client.submit(_asks_for_a_cluster, address).result() is None


def _asks_for_a_cluster(address: str) -> object:
    os.environ["NEORL_DASK_SCHEDULER"] = address
    with cluster.cluster() as client:
        return None if client is None else str(client)
