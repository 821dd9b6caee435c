"""The server itself: whether it is there, who asks, and how the person at the page comes in."""

from __future__ import annotations

from orchestrator import __version__
from orchestrator.store.page_logins import COOKIE_SECONDS
from orchestrator.surfaces.http.askers import page_cookie, page_login
from orchestrator.surfaces.http.bodies import HealthBody, LoginBody, LoginCode, MeBody
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.http.problems import HttpRefusal

COOKIE_SHAPE = "{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age}{secure}"


async def health(_: ApiCall) -> ApiReply:
    return ApiReply(HealthBody(version=__version__))


async def me(call: ApiCall) -> ApiReply:
    settings, person = call.parts.settings, call.asker.person
    return ApiReply(
        MeBody(
            caller=call.asker.caller,
            person=person,
            project=settings.project if person else "",
            project_name=settings.project_dir.name,
            version=__version__,
        )
    )


async def login(call: ApiCall) -> ApiReply:
    given: LoginCode = call.body
    login = await call.parts.logins.redeem(given.code)
    if login is None:
        raise HttpRefusal(
            401,
            "unauthorized",
            "this link was used before, or is too old; `orchestrator dashboard` opens a new one",
        )
    headers = {"Set-Cookie": _cookie(call, login.cookie, COOKIE_SECONDS)}
    return ApiReply(LoginBody(key=login.key), headers=headers)


async def logout(call: ApiCall) -> ApiReply:
    if (login := page_login(call.request)) is not None:
        await call.parts.logins.forget(login)
    return ApiReply(status=204, headers={"Set-Cookie": _cookie(call, "", 0)})


def _cookie(call: ApiCall, value: str, age: int) -> str:
    secure = "; Secure" if call.request.url.scheme == "https" else ""
    return COOKIE_SHAPE.format(name=page_cookie(call.request), value=value, age=age, secure=secure)


SERVER_ENDPOINTS = (
    Endpoint(
        *("GET", "/v1/health", health, "Ask whether the server is there"),
        {200: HealthBody},
        open=True,
    ),
    Endpoint(*("GET", "/v1/me", me, "Ask who one is"), {200: MeBody}),
    Endpoint(
        *("POST", "/v1/login", login, "Exchange the code of a link for the page's cookie and key"),
        {200: LoginBody},
        (401,),
        body=LoginCode,
        open=True,
        keyed=False,
    ),
    Endpoint(*("POST", "/v1/logout", logout, "Forget the page's cookie"), {204: None}, keyed=False),
)
