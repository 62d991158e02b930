"""A home's metrics in Prometheus' text format, for `neorl metrics` and for the server of `neorl up`."""

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
from flows.services.service_table import SERVICES
from tasks.metrics.catalogue import METRICS
from tasks.metrics.homes import Readings

TIME_LIMIT = 5.0
"""Seconds in which all services together must answer. Prometheus waits ten seconds for a scrape."""


class HomeCollector(Collector):
    """Prometheus collector that reads a home at each scrape. Scrapes run one after the other.

    Args:
        home: home to read; nothing is changed.
        answers: returns whether each service answers, by name; by default `Answers(home)`.
        clock: returns seconds since 1970.

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
        """Yield every metric that has samples."""
        # The library appends `_total` to names of counters.
        families = {
            name: CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=metric.labels)
            if metric.kind == "counter"
            else GaugeMetricFamily(name, metric.help, labels=metric.labels)
            for name, metric in METRICS.items()
        }
        with self._one:
            for name, labels, value in self._readings.look(self._answers):
                # The library would silently drop labels without a value.
                if len(labels) != len(METRICS[name].labels):
                    raise ValueError(f"{name} has the labels {METRICS[name].labels}, got values {labels}")
                families[name].add_metric(labels, value)
        yield from (family for family in families.values() if family.samples)


class Answers:
    """Check whether the services of a home answer within `TIME_LIMIT`."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._pool = ThreadPoolExecutor(len(SERVICES), thread_name_prefix="answers")
        self._asked: dict[str, Future[bool]] = {}

    def __call__(self) -> Mapping[str, bool]:
        """Return by name whether a service answers; False if an earlier request has had no answer yet."""
        names = servers.wanted(self._home)
        for name in names:
            if name not in self._asked or self._asked[name].done():
                self._asked[name] = self._pool.submit(servers.answers, self._home, name)
        wait([self._asked[name] for name in names], TIME_LIMIT)
        return {name: self._answered(self._asked[name]) for name in names}

    @staticmethod
    def _answered(asked: Future[bool]) -> bool:
        # The request raises if, for example, a worker's Prefect is down.
        return asked.done() and asked.exception() is None and asked.result()


def application() -> Starlette:
    """Return the server of `/metrics` and `/health` for the home in `NEORL_HOME`."""
    collector = HomeCollector(Home.locate())

    # Not a coroutine, so that Starlette runs it in a thread and a slow scrape does not block the server.
    def metrics(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(collector), media_type=media_type)

    def health(request: Request) -> Response:
        return PlainTextResponse("OK\n")

    return Starlette(routes=[Route("/metrics", metrics), Route("/health", health)])
