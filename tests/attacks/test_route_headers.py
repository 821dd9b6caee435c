"""Attacks by headers on requests that a secret is added to."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from orchestrator.domain.agent import Secret
from tests.attacks.mark import attack
from tests.gateway.secrets.test_routes import TOKEN, Serve, ask, hello, serve

__all__ = ["serve"]

pytestmark = pytest.mark.anyio

OTHER_REQUESTS = (
    *("Sudo", "Private-Token", "Job-Token", "X-Original-Method", "X-Original-Uri"),
    *("X-Original-Host", "X-Envoy-Original-Path", "Destination", "X-Middleware-Subrequest"),
    *("Accept-Charset", "X-Host", "X-Forwarded-Host", "X-Forwarded-Uri", "X-Http-Path-Override"),
    *("X-Amz-Security-Token", "X-Goog-User-Project", "X-Consul-Token", "X-Vault-Namespace"),
    *("Api-Key", "X-Api-Key", "X-Auth-Token", "X-Remote-User", "X-User", "Impersonate-User"),
    *("X-HTTP-Method", "X-Rewrite-Url", "Overwrite", "Lock-Token", "If", "Depth", "Origin"),
    *("Referer", "Early-Data", "Max-Forwards", "Transfer-Extension", "Front-End-Https", "Range"),
)


@attack(
    "gateway abuse",
    "make a request with a secret another one by headers that only its server knows (35 of them)",
    "headers that pass are listed; the server sees none of the others, and the secret as it was",
)
async def test_headers_that_are_not_listed_do_not_pass(serve: Serve) -> None:
    stage = serve(hello)
    said = dict.fromkeys(OTHER_REQUESTS, "root") | {"Accept": "text/plain"}

    answer = await ask(stage.access(), stage.url("/repos/acme"), headers=said)

    assert answer.status == 200
    (received,) = stage.https.requests
    assert received.headers == {
        "host": stage.https.host,
        "accept": "text/plain",
        "accept-encoding": "identity",
        "authorization": f"Bearer {TOKEN}",
        "connection": "close",
    }


async def test_what_clients_need_and_what_agent_md_names_passes(serve: Serve) -> None:
    stage = serve(hello)
    said = {
        "user-agent": "git/2.39",
        "git-protocol": "version=2",
        "content-type": "application/x-git-upload-pack-request",
        "content-encoding": "gzip",
        "if-none-match": '"x"',
        "x-github-api-version": "2022-11-28",
        "notion-version": "2022-06-28",
    }
    access = stage.access(headers=["Notion-Version"])
    await ask(access, stage.url("/repos/acme"), "POST", headers=said, body=b"x")
    (received,) = stage.https.requests
    assert said.items() <= received.headers.items()


@pytest.mark.parametrize("name", ["Cookie", "range", "X-Forwarded-For", "Host", "a b", "Proxy-X"])
def test_no_author_lets_a_header_pass_that_makes_another_request(name: str) -> None:
    with pytest.raises(ValidationError, match=r"header"):
        Secret(name="x", hosts=("h.test",), paths=("/x",), headers=(name,))
