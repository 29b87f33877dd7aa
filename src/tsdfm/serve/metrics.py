"""What Prometheus is told: what the scheduler counts for itself, and requests by path and status."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tsdfm.serve.guard import Message, Receive, Send
from tsdfm.serve.intake import Intake

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)


class Counts(Collector):
    """A scheduler's tally, read when it is asked for."""

    def __init__(self, scheduler: Intake) -> None:
        self.scheduler = scheduler

    def collect(self) -> Iterator[Any]:
        """The numbers of this moment."""
        tally = self.scheduler.tally
        yield GaugeMetricFamily("tsdfm_rows_live", "texts that are being written", self.scheduler.live)
        yield GaugeMetricFamily("tsdfm_rows_waiting", "texts that wait for a place", self.scheduler.queued)
        for name, text, value in (
            ("passes", "passes, each of all live texts of a model", tally.passes),
            ("row_passes", "passes, counted for each text", tally.rows),
            ("texts", "texts that were finished", tally.texts),
            ("tokens", "tokens of finished texts", tally.tokens),
            ("busy_seconds", "seconds of passes", tally.busy),
            ("own_seconds", "seconds of passes that were not the network's", tally.own),
        ):
            yield CounterMetricFamily(f"tsdfm_{name}", text, value)


class Metrics:
    """An ASGI application around another, which counts what it answers."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]], registry: CollectorRegistry) -> None:
        self.app = app
        self.requests = Counter("tsdfm_requests", "requests", ("path", "status"), registry=registry)
        self.seconds = Histogram(
            "tsdfm_request_seconds", "seconds of a request", ("path",), registry=registry, buckets=SECONDS
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer, and count it under the path of its route."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 499  # of a client that hung up

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, told)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.requests.labels(path, str(status)).inc()
            self.seconds.labels(path).observe(time.perf_counter() - began)
        return None
