"""The routes -> their description: OpenAPI 3.1, with schemas made of our own models. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator import __version__
from orchestrator.surfaces.http.endpoint import AnswerBody, Endpoint
from orchestrator.surfaces.http.problems import PROBLEM_TYPE, ProblemBody

REF = "#/components/schemas/{model}"

ANY = (400, 403, 405, 421, 500, 503)
"""Statuses of problems that any request can have."""

PROBLEMS = (*ANY, 401, 404, 409, 413, 415, 422)
"""Statuses of all problems that there are."""

_PATH_NAME = re.compile(r"\{(\w+)\}")

PATH_NAME_CHARS = 200

ABOUT_API = (
    "Hands tasks to agents in locked containers. Every answer has X-Request-Id; problems have one "
    "shape; events have ids that survive a restart."
)


def description(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The whole document."""
    known = list(endpoints)
    models: set[type[BaseModel]] = {ProblemBody}
    for each in known:
        models |= {m for m in each.answers.values() if isinstance(m, type)}
        models |= {each.body} if each.body is not None else set()
    ordered = sorted(models, key=lambda model: model.__name__)
    wanted = [(model, _mode(model, known)) for model in ordered]
    refs, schemas = models_json_schema(wanted, ref_template=REF)  # type: ignore[arg-type]  # modes
    named = {model: refs[model, mode] for model, mode in wanted}  # type: ignore[index]
    paths: dict[str, dict[str, Any]] = {}
    for each in known:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, named)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Subagent orchestrator",
            "version": __version__,
            "description": ABOUT_API,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "responses": {
                f"Problem{status}": {
                    "description": HTTPStatus(status).phrase,
                    "content": {PROBLEM_TYPE: {"schema": named[ProblemBody]}},
                }
                for status in PROBLEMS
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "page": {"type": "apiKey", "in": "cookie", "name": "orchestrator_page"},
            },
        },
        "security": [{"token": []}, {"page": []}, {}],
    }


def _mode(model: type[BaseModel], endpoints: Iterable[Endpoint]) -> str:
    taken = any(each.body is model for each in endpoints)
    return "validation" if taken else "serialization"


def _operation(each: Endpoint, named: dict[type[BaseModel], Any]) -> dict[str, Any]:
    answers = {
        str(status): _answer(status, body, named, each) for status, body in each.answers.items()
    }
    refusals = {*ANY, *each.refusals} | (set() if each.open else {401})
    if each.method == "POST":
        refusals |= {409, 413, 415}
    for status in sorted(refusals):
        answers.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    said: dict[str, Any] = {
        "operationId": _id(each),
        "summary": each.summary,
        "tags": [each.path.split("/")[2]],
        "parameters": list(_parameters(each)),
        "responses": answers,
    }
    if each.person:
        said["description"] = "Only for the person at the page."
    if each.open:
        said["security"] = [{}]
    if each.body is not None:
        content = {"application/json": {"schema": named[each.body]}}
        required = any(field.is_required() for field in each.body.model_fields.values())
        said["requestBody"] = {"required": required, "content": content}
    elif each.takes:
        content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in each.takes}
        said["requestBody"] = {"required": True, "content": content}
    return said


def _answer(
    status: int,
    body: AnswerBody,
    named: dict[type[BaseModel], Any],
    each: Endpoint,
) -> dict[str, Any]:
    said: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if isinstance(body, str):
        schema = {"type": "string"} if body.startswith("text/") else {}
        said["content"] = {body: {"schema": schema or {"type": "string", "format": "binary"}}}
    elif body is not None:
        said["content"] = {"application/json": {"schema": named[body]}}
        if each.streams:
            said["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return said


def _parameters(each: Endpoint) -> Iterable[dict[str, Any]]:
    for name in _PATH_NAME.findall(each.path):
        schema = {"type": "string", "minLength": 1, "maxLength": PATH_NAME_CHARS}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    fields = each.query.model_json_schema(ref_template=REF).get("properties", {})
    for name, schema in fields.items():
        about = schema.pop("description", "")
        schema.pop("title", None)
        if "anyOf" in schema:  # a query parameter that is not there is not null
            (kind,) = [each for each in schema.pop("anyOf") if each != {"type": "null"}]
            schema.update(kind)
            schema.pop("default", None)
        said = {"name": name, "in": "query", "required": False, "schema": schema}
        yield {**said, **({"description": about} if about else {})}
    if each.waits:
        yield _header("Prefer", "`wait=N`: wait for N seconds, at most 300, until it is settled")
    if each.streams:
        yield _header("Last-Event-ID", "The id of the last event that was read", "^[0-9]{1,18}$")
    if each.method == "POST" and not each.open:
        key = "The same request under the same key is done once; for 24 hours"
        yield _header("Idempotency-Key", key, r"^[!-~]{1,255}$")


def _header(name: str, about: str, pattern: str = "") -> dict[str, Any]:
    schema = {"type": "string", **({"pattern": pattern} if pattern else {})}
    said = {"name": name, "in": "header", "required": False, "schema": schema}
    return {**said, "description": about}


def _id(each: Endpoint) -> str:
    words = [part.strip("{}") for part in each.path.split("/")[2:] if part]
    return "_".join((each.method.lower(), *words)).replace("-", "_").replace(".", "_")
