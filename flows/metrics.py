"""A home's numbers in Prometheus' text format: printed once, or served by `neorl up`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from configs.home import Home
from flows.services import servers
from flows.services.definitions import SERVICES
from tasks.metrics.catalogue import METRICS
from tasks.metrics.homes import Readings

PATIENCE = 5.0
"""Seconds that all services together have to answer: Prometheus waits for ten."""


class HomeCollector(Collector):
    """Reads a home anew at each scrape, one scrape after the other.

    Args:
        home: of which nothing is changed.
        answers: tells by name whether each service answers; those of the home when not given.
        clock: seconds since 1970.

    Example:
        >>> print(generate_latest(HomeCollector(Home.locate())).decode())  # doctest: +SKIP
    """

    def __init__(
        self,
        home: Home,
        answers: Callable[[], Mapping[str, bool]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._readings, self._answers = Readings(home, clock), answers or Answers(home)
        self._one = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Every metric, with the samples that there are."""
        # A counter's name has its `_total` from the library.
        families = {
            name: CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=metric.labels)
            if metric.kind == "counter"
            else GaugeMetricFamily(name, metric.help, labels=metric.labels)
            for name, metric in METRICS.items()
        }
        with self._one:
            for name, labels, value in self._readings.look(self._answers):
                # The library would leave out what a label has no value for.
                if len(labels) != len(METRICS[name].labels):
                    raise ValueError(f"expected the labels {METRICS[name].labels} of {name}, got {labels}")
                families[name].add_metric(labels, value)
        yield from (family for family in families.values() if family.samples)


class Answers:
    """Whether the services of a home answer, in a time that a scrape can wait for.

    Args:
        home: whose services.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._pool = ThreadPoolExecutor(len(SERVICES), thread_name_prefix="answers")
        self._asked: dict[str, Future[bool]] = {}

    def __call__(self) -> Mapping[str, bool]:
        """By name; one that still owes an answer from before is not asked once more, and does not answer."""
        names = servers.wanted(self._home)
        for name in names:
            if name not in self._asked or self._asked[name].done():
                self._asked[name] = self._pool.submit(servers.answers, self._home, name)
        wait([self._asked[name] for name in names], PATIENCE)
        return {name: self._answered(self._asked[name]) for name in names}

    @staticmethod
    def _answered(asked: Future[bool]) -> bool:
        # A service that cannot even be asked, such as a worker of a server that is gone, does not answer either.
        return asked.done() and asked.exception() is None and asked.result()


def application() -> Starlette:
    """The metrics of the home that `NEORL_HOME` names, at `/metrics`; `/health` tells that somebody is there."""
    collector = HomeCollector(Home.locate())

    # No coroutine: Starlette gives it a thread, so that a long look keeps nobody else waiting.
    def metrics(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(collector), media_type=media_type)

    def health(request: Request) -> Response:
        return PlainTextResponse("OK\n")

    return Starlette(routes=[Route("/metrics", metrics), Route("/health", health)])
