"""schemathesis attacks a server by its own description."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
)


@schemathesis.serializer("application/x-tar", "application/gzip")
def archive(_: Any, value: Any) -> Any:
    """An archive is bytes, or something that is none."""
    return value if isinstance(value, bytes) else repr(value).encode()


def attack(
    url: str,
    headers: dict[str, str],
    known: Mapping[str, Sequence[str]],
    *,
    examples: int,
    seconds: float,
) -> int:
    """Send what fits the description and what does not, to all operations, round after round until
    the time is up; names in paths are made up, or known ones. How many requests there were.
    """
    schema = schemathesis.openapi.from_url(f"{url}/v1/openapi.json")
    found: list[Any] = list(schema.get_all_operations())
    operations = [each.ok() for each in found]
    sent, until = 0, time.monotonic() + seconds
    while True:
        for operation in operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                with suppress(Unsatisfiable):  # some take nothing that could be wrong
                    sent += _attack(operation, mode, headers, known, examples)
        if time.monotonic() >= until:
            return sent


def _attack(
    operation: Any,
    mode: Any,
    headers: dict[str, str],
    known: Mapping[str, Sequence[str]],
    examples: int,
) -> int:
    sent = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        nonlocal sent
        sent += 1
        for name, values in known.items():
            made_up = str((case.path_parameters or {}).get(name, ""))
            if len(made_up) % 2 and mode is GenerationMode.POSITIVE:
                case.path_parameters[name] = values[len(made_up) // 2 % len(values)]
        response = case.call(headers=headers)
        try:
            case.validate_response(response, checks=CHECKS, headers=headers)
        except FailureGroup as exc:
            said = f"{case.as_curl_command()}\n-> {response.status_code} {response.text[:500]}"
            raise AssertionError(f"{said}\n{exc.exceptions}") from exc

    send()
    return sent
