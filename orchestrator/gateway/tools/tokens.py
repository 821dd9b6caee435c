"""How the orchestrator says who it is to a server at a URL: a secret, or tokens by OAuth.

Tokens come from the SDK's client. They are kept in the state directory, a file for each server,
which one process at a time renews; the client that they belong to is bound to its issuer.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import extract_scope_from_www_auth
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel, ConfigDict, SecretStr, ValidationError

from orchestrator.containers.file_lock import FileLock
from orchestrator.domain.tool_server import ClientCredentials, OAuth, SecretHeader, ToolServer
from orchestrator.errors import OperatorError, ServerFailed

LOGIN_SECONDS = 600.0
"""For a person to log in."""

RENEW_SECONDS = 60.0
"""For another process to renew tokens, before we say that it holds the lock for too long."""

RENEW_EARLY_SECONDS = 30.0
"""Tokens are renewed so long before they end."""

LOCK_RETRY_SECONDS = 0.1

CLIENT_NAME = "Subagent Orchestrator"

NOBODY_IS_THERE = "no person is there to log in"


class KeptLogin(BaseModel):
    """What is kept of a login."""

    model_config = ConfigDict(extra="forbid")

    url: str
    """Of the server that the tokens are for."""
    issuer: str = ""
    """Who gave them out."""
    expires_at: float | None = None
    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    metadata: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None


class TokenFile:
    """TokenStorage of the SDK, in a file of ours that no other user can read.

    It belongs to one server of one project, and to who it is that asks there: what a person has
    logged in to is not for a program with credentials of its own, nor for another project that
    names the same URL.
    """

    def __init__(self, folder: Path, project: str, server: ToolServer) -> None:
        auth = None if server.auth is None else server.auth.model_dump()
        whose = json.dumps([project, server.name, server.url, auth])
        self._path = folder / f"{hashlib.sha256(whose.encode()).hexdigest()[:32]}.json"
        self._url = server.url or ""
        self.kept = KeptLogin(url=self._url)

    async def load(self) -> None:
        """Read again what is there: another process may have renewed it."""
        self.kept = await anyio.to_thread.run_sync(self._read)

    @asynccontextmanager
    async def anew(self) -> AsyncIterator[None]:
        """Forget what is kept, so that a person logs in; if that fails, it counts as before."""
        before: KeptLogin | None = None
        with suppress(OperatorError):  # what cannot be read is worth nothing
            before = await anyio.to_thread.run_sync(self._read)
        self._path.unlink(missing_ok=True)
        try:
            yield
        except BaseException:
            if before is not None and before.tokens is not None:
                self.kept = before
                self._write()  # at once: it may be a Ctrl-C
            raise

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """One process at a time renews: the token of before is worth nothing afterwards."""
        lock = FileLock(self._path.with_suffix(".lock"))
        try:
            with anyio.fail_after(RENEW_SECONDS):
                while not lock.acquire():  # noqa: ASYNC110 no other process tells us
                    await anyio.sleep(LOCK_RETRY_SECONDS)
        except TimeoutError:
            raise OperatorError(
                f"{self._path} has been locked by another process for {RENEW_SECONDS:.0f} s"
            ) from None
        try:
            yield
        finally:
            lock.release()

    async def get_tokens(self) -> OAuthToken | None:
        return self.kept.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        ends = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self.kept = self.kept.model_copy(update={"tokens": tokens, "expires_at": ends})
        await anyio.to_thread.run_sync(self._write)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.kept.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.kept = self.kept.model_copy(update={"client": client_info})
        await anyio.to_thread.run_sync(self._write)

    async def keep_metadata(
        self, metadata: OAuthMetadata | None, resource: ProtectedResourceMetadata | None
    ) -> None:
        """Where tokens are renewed, which the SDK forgets with its process."""
        issuer = "" if metadata is None else str(metadata.issuer)
        update = {"metadata": metadata, "resource": resource, "issuer": issuer}
        self.kept = self.kept.model_copy(update=update)
        await anyio.to_thread.run_sync(self._write)

    def _read(self) -> KeptLogin:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return KeptLogin(url=self._url)
        except OSError as exc:
            raise OperatorError(f"{self._path} cannot be read: {exc.strerror}") from exc
        try:
            kept = KeptLogin.model_validate_json(text)
        except ValidationError:
            raise OperatorError(
                f"{self._path} is not what we wrote; remove it, and log in again"
            ) from None
        return kept if kept.url == self._url else KeptLogin(url=self._url)

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._path.with_name(f".{secrets.token_hex(8)}")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(self.kept.model_dump_json(exclude_none=True))
        new.replace(self._path)


class HeaderAuth(httpx2.Auth):
    """A secret of the operator's, as a header of each request."""

    def __init__(self, auth: SecretHeader, value: SecretStr) -> None:
        self._name = auth.header
        self._value = value
        self._bearer = auth.scheme == "bearer"

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        text = self._value.get_secret_value()
        request.headers[self._name] = f"Bearer {text}" if self._bearer else text
        yield request


class TokenAuth(httpx2.Auth):
    """Tokens on each request; got and renewed by the SDK, by one process at a time.

    The SDK's own flow holds a lock until a request is answered, so that a cancellation would wait
    for the call that it cancels. With a token that is good, no lock is needed.
    """

    def __init__(self, provider: OAuthClientProvider, file: TokenFile) -> None:
        self._provider = provider
        self._file = file
        self._loaded = False
        self._one = anyio.Lock()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if not self._loaded:
            await self._load()
        token = self._good_token()
        if token:
            request.headers["authorization"] = f"Bearer {token}"
            response = yield request
            if response.status_code not in (401, 403):
                return
        async with self._one, self._file.locked():
            await self._load()
            fresh = self._good_token()
            if fresh and fresh != token:  # renewed meanwhile, here or by another process
                request.headers["authorization"] = f"Bearer {fresh}"
                response = yield request
                if response.status_code not in (401, 403):
                    return
            flow = self._provider.async_auth_flow(request)
            try:
                outgoing = await flow.__anext__()
                while True:
                    response = yield outgoing
                    self._challenged(outgoing is request, response)
                    outgoing = await flow.asend(response)
            except StopAsyncIteration:
                context = self._provider.context
                await self._file.keep_metadata(
                    context.oauth_metadata, context.protected_resource_metadata
                )
            finally:
                await flow.aclose()

    async def _load(self) -> None:
        await self._file.load()
        kept, context = self._file.kept, self._provider.context
        context.current_tokens, context.token_expiry_time = kept.tokens, kept.expires_at
        context.oauth_metadata, context.protected_resource_metadata = kept.metadata, kept.resource
        if kept.issuer:
            context.auth_server_url = kept.issuer
        if kept.client is not None and context.client_info is None:
            context.client_info = kept.client
        self._loaded = True

    def _good_token(self) -> str:
        tokens, ends = self._file.kept.tokens, self._file.kept.expires_at
        if tokens is None:
            return ""
        early = min(RENEW_EARLY_SECONDS, 0.1 * (tokens.expires_in or 0))
        return tokens.access_token if ends is None or time.time() < ends - early else ""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no agent may see of it."""
        tokens = self._file.kept.tokens
        return () if tokens is None else (tokens.access_token, tokens.refresh_token or "")

    def _challenged(self, ours: bool, response: httpx2.Response) -> None:
        """Remember what the server asks for: no more than that is asked of the person."""
        if ours and response.status_code in (401, 403) and isinstance(self._provider, _Login):
            self._provider.challenged = extract_scope_from_www_auth(response)


class _Login(OAuthClientProvider):
    """The SDK's, which asks for the scopes that server.yaml or the challenge names, never for all
    that a server knows.
    """

    def __init__(self, scopes: tuple[str, ...], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scopes = " ".join(scopes)
        self.challenged: str | None = None

    async def _initialize(self) -> None:
        self._initialized = True  # TokenAuth has loaded what there is

    async def _perform_authorization(self) -> httpx2.Request:
        self.context.client_metadata.scope = self._scopes or self.challenged
        return await super()._perform_authorization()


class _Credentials(ClientCredentialsOAuthProvider):
    async def _initialize(self) -> None:
        self.context.client_info = self._fixed_client_info
        self._initialized = True


ShowPage = Callable[[str], Awaitable[None]]
"""Shows a URL to the person who logs in."""

Called = Callable[[], Awaitable[AuthorizationCodeResult]]
"""Waits until the person comes back from there."""


def auth_of(
    server: ToolServer,
    secret_values: dict[str, SecretStr],
    file: TokenFile,
    *,
    redirect: str = "http://127.0.0.1/callback",
    show: ShowPage | None = None,
    called: Called | None = None,
) -> httpx2.Auth | None:
    """How requests to a server say who asks; with `show` and `called`, a person can log in."""
    auth, url = server.auth, server.url or ""
    if auth is None:
        return None
    if isinstance(auth, SecretHeader):
        return HeaderAuth(auth, secret_values[auth.secret])
    if isinstance(auth, ClientCredentials):
        credentials = _Credentials(
            url,
            file,
            client_id=auth.client_id,
            client_secret=secret_values[auth.client_secret].get_secret_value(),
            scope=" ".join(auth.scopes) or None,
            issuer=auth.issuer,
        )
        return TokenAuth(credentials, file)
    return TokenAuth(_login(auth, secret_values, url, file, redirect, show, called), file)


def _login(
    auth: OAuth,
    secret_values: dict[str, SecretStr],
    url: str,
    file: TokenFile,
    redirect: str,
    show: ShowPage | None,
    called: Called | None,
) -> _Login:
    async def nobody(*_: object) -> Any:
        raise OAuthFlowError(NOBODY_IS_THERE)

    metadata = OAuthClientMetadata(
        client_name=CLIENT_NAME,
        redirect_uris=[AnyUrl(redirect)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="client_secret_basic" if auth.client_secret else "none",
    )
    provider = _Login(auth.scopes, url, metadata, file, show or nobody, called or nobody)
    if auth.client_id is not None:
        named = auth.client_secret
        secret = secret_values[named].get_secret_value() if named else None
        provider.context.client_info = OAuthClientInformationFull(
            client_id=auth.client_id,
            client_secret=secret,
            redirect_uris=[AnyUrl(redirect)],
            token_endpoint_auth_method=metadata.token_endpoint_auth_method,
        )
    return provider


def login_problem(exc: BaseException, name: str) -> ServerFailed | None:
    """What to tell of an OAuth that failed, of errors that task groups have put together."""
    if isinstance(exc, OAuthFlowError):
        if NOBODY_IS_THERE in str(exc):
            said = f"the server {name} wants a login: orchestrator servers login {name}"
            return ServerFailed(said)
        return ServerFailed(
            f"the login to {name} failed: {json.dumps(str(exc), ensure_ascii=False)}"
        )
    if isinstance(exc, BaseExceptionGroup):
        problems = (login_problem(each, name) for each in exc.exceptions)
        return next((problem for problem in problems if problem is not None), None)
    return None


def code_of(url: str) -> AuthorizationCodeResult:
    """What a redirect to us says; a person may have pasted it."""
    query = {key: values[0] for key, values in parse_qs(urlsplit(url.strip()).query).items()}
    if "code" not in query:
        said = json.dumps(query.get("error_description") or query.get("error") or "no code in it")
        raise ServerFailed(f"the login did not succeed: {said[:300]}")
    return AuthorizationCodeResult(
        code=query["code"], state=query.get("state"), iss=query.get("iss")
    )
