"""Who makes a request: a caller by its token, the person at the page by a cookie, or the caller of
a server that has no tokens.
"""

from __future__ import annotations

import hmac
import re

from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request

from orchestrator.access import DEFAULT_CALLER, known_caller, own_caller
from orchestrator.domain import Frozen
from orchestrator.settings import Settings
from orchestrator.store.page_logins import PageLogin, PageLogins
from orchestrator.surfaces.http.problems import HttpRefusal

PAGE_HEADER = "x-orchestrator"
"""The key that goes with the cookie. Only a script of our own page has it, and another page's could
not send the header without our leave."""

READING_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))

USER_AGENT_NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
"""The beginning of a User-Agent that is taken for a client's name."""


class Asker(Frozen):
    """Who makes a request."""

    caller: str
    """As whom runs are begun."""
    person: bool = False
    """The operator, who sees all runs of the project and decides what is left to a person."""

    @property
    def sees_as(self) -> str | None:
        """As whom the book of tasks is asked: None is the operator."""
        return None if self.person else self.caller

    @property
    def key(self) -> str:
        """Whose keys of requests these are."""
        return "" if self.person else self.caller


class Askers:
    """Finds out who asks, for one server."""

    def __init__(self, settings: Settings, allowed: TransportSecuritySettings) -> None:
        self._settings = settings
        self._place = TransportSecurityMiddleware(allowed)

    async def check_place(self, request: Request) -> None:
        """HttpRefusal of a request that came by another name, or from another page."""
        refused = await self._place.validate_request(request)
        if refused is None:
            return
        if refused.status_code == 421:
            raise HttpRefusal(421, "wrong_host", "this server does not answer to that host name")
        raise HttpRefusal(403, "forbidden_origin", "that origin may not use this server")

    async def asker(self, request: Request, logins: PageLogins) -> Asker:
        """Who asks; a HttpRefusal if that is not known and must be."""
        settings = self._settings
        header = request.headers.get("authorization", "")
        login = page_login(request)
        if not header and login is not None and await logins.knows(login):
            _check_page(request)
            return Asker(caller=own_caller(settings), person=True)
        if not settings.http_tokens:
            _check_page(request)  # a browser needs no token here, whatever page it shows
            named = settings.named_caller
            deny = settings.deny_on_missing_caller
            return Asker(caller=known_caller(named, DEFAULT_CALLER, deny_missing=deny))
        scheme, _, token = header.partition(" ")
        for caller, secret in settings.http_tokens.items():
            same = hmac.compare_digest(secret.get_secret_value().encode(), token.strip().encode())
            if same and scheme.lower() == "bearer":
                return Asker(caller=caller)
        raise HttpRefusal(
            401,
            "unauthorized",
            "this server wants a token: send `Authorization: Bearer TOKEN` with one of "
            "ORCHESTRATOR_HTTP_TOKENS, or open the page with `orchestrator dashboard`",
            {"WWW-Authenticate": "Bearer"},
        )


def window_of(request: Request, asker: Asker) -> str:
    """The client, for people to tell apart."""
    if asker.person:
        return "page"
    found = USER_AGENT_NAME.match(request.headers.get("user-agent", ""))
    return f"http {found.group()}" if found else "http"


def page_cookie(request: Request) -> str:
    """What the page's cookie is called. Browsers know hosts, not ports, so that the pages of two
    servers would have one cookie otherwise.
    """
    return f"orchestrator_page_{request.url.port or request.url.scheme}"


def page_login(request: Request) -> PageLogin | None:
    """What the page brings to be known by; None if it is not the page."""
    cookie = request.cookies.get(page_cookie(request), "")
    key = request.headers.get(PAGE_HEADER, "")
    return PageLogin(cookie, key) if cookie and key else None


def _check_page(request: Request) -> None:
    """HttpRefusal of what another page could have had the browser send: one on another port of this
    machine has an origin that is allowed.
    """
    if request.method in READING_METHODS:
        return
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise HttpRefusal(403, "forbidden_origin", "another page may not use this server")
