"""The OpenAPI document says what the server does: schemathesis asks by it, and finds nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from http_parts import listening
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from serve_parts import served

# A text that the schema allows may still be longer than the model's rows.
CHECKS = {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404]}}}


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    with listening(served(), rows=32, max_n=2, max_steps=3, api_key="sesame") as (address, _):
        config = schemathesis.config.SchemathesisConfig.from_dict(CHECKS)
        yield schemathesis.openapi.from_url(f"{address}/openapi.json", config=config)


@pytest.mark.hypothesis  # so that `make fuzz` asks more
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=str)
def test_the_document_is_true(api: Any, mode: schemathesis.GenerationMode) -> None:
    """Requests as it allows them, and others: no answer, status or header that it does not tell of."""
    seen = set()
    for found in api.get_all_operations():
        operation = found.ok()
        seen.add(operation.path)

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=settings.default.max_examples // 15, suppress_health_check=list(HealthCheck))
        def ask(case: Any) -> None:
            case.call_and_validate(headers={"Authorization": "Bearer sesame"})

        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong with a request that says nothing
            ask()
    assert {"/v1/completions", "/v1/infill", "/v1/models", "/healthz", "/metrics"} <= seen
