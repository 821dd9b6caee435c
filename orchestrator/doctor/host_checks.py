"""What a run needs besides what its engine promises: a place for records, room, a key, the model
API, an engine that this user may use.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread

from orchestrator.containers.docker.engine import connect
from orchestrator.containers.owner import make_state_dir
from orchestrator.doctor.examination import Check
from orchestrator.errors import OrchestratorError
from orchestrator.gateway.model.credential import WITHOUT_A_MODEL, credential_of, is_paid_for
from orchestrator.gateway.model.free_request import FreeAnswer, ask_for_free
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.providers import PROVIDERS, base_url_of
from orchestrator.settings import Settings
from orchestrator.store.database import Database

GIB = 1024**3

LITTLE_ROOM = 5 * GIB
"""Below this, an image that is built or a large workspace may not fit."""

NO_ROOM = GIB // 4
"""Below this, runs cannot be recorded for long."""


async def examine_host(settings: Settings) -> AsyncIterator[Check]:
    """One check after the other; none of them costs anything."""
    yield await anyio.to_thread.run_sync(_state, settings)
    yield await anyio.to_thread.run_sync(_disk, settings)
    yield _key(settings)
    for name in _used_providers(settings) or ("anthropic",):
        yield await _api(settings, name)
    for check in await anyio.to_thread.run_sync(_engine, settings):
        yield check


def _state(settings: Settings) -> Check:
    held = "the record of runs can be written, and by you alone"
    try:
        make_state_dir(settings.state_dir)
        Database(settings.state_dir / "runs.sqlite").close()
    except OrchestratorError as exc:
        return _check("state", held, str(exc), advice="mend it, or set ORCHESTRATOR_STATE_DIR")
    return _check("state", held, str(settings.state_dir))


def _disk(settings: Settings) -> Check:
    return disk_check({place: shutil.disk_usage(place).free for place in _places(settings)})


def disk_check(free: dict[Path, int]) -> Check:
    """Whether there is room where runs and downloads are written. Pure."""
    held = "there is room for runs and images"
    said = ", ".join(f"{size / GIB:.1f} GiB in {place}" for place, size in free.items())
    least = min(free.values(), default=0)
    if least >= LITTLE_ROOM:
        return _check("disk", held, said)
    advice = "`orchestrator runs prune` and `orchestrator images prune` make room"
    return _check("disk", held, said, advice=advice, warning=least >= NO_ROOM)


def _places(settings: Settings) -> list[Path]:
    """The directories, each of its own file system, as far as they are there."""
    found: dict[int, Path] = {}
    for folder in (settings.state_dir, settings.cache_dir):
        there = next(place for place in (folder, *folder.parents) if place.exists())
        found.setdefault(there.stat().st_dev, there)
    return list(found.values())


def _key(settings: Settings) -> Check:
    held = "there is a credential for the model"
    if settings.scripted:
        return _check("key", held, "none is needed: ORCHESTRATOR_SCRIPTED has scripts play it")
    found = []
    for name in _used_providers(settings):
        try:
            credential = credential_of(settings, name)
        except OrchestratorError as exc:
            return _check("key", held, str(exc), advice="copy it again")
        address = base_url_of(settings, name)
        unset = f"none is set for {PROVIDERS[name].label}, and {address} may want none"
        found.append(unset if credential is None else f"{credential.variable} is set")
    if found:
        return _check("key", held, "; ".join(found))
    keys = "; ".join(f"{each.label}: {each.key_variables}" for each in PROVIDERS.values())
    return _check(
        "key", held, "none is set", advice=f"set one ({keys}); {WITHOUT_A_MODEL}", warning=True
    )


def _used_providers(settings: Settings) -> tuple[ProviderName, ...]:
    """Those that the operator has set a credential or an address for, right or wrong."""
    return tuple(
        name
        for name, provider in PROVIDERS.items()
        if is_paid_for(settings, name) or base_url_of(settings, name) != provider.usual_base_url
    )


async def _api(settings: Settings, name: ProviderName) -> Check:
    shown = _shown_name(name)
    if settings.scripted:
        return _check(shown, API_HELD, "not asked: scripts play the model")
    try:
        credential = credential_of(settings, name)
        if name not in _used_providers(settings):
            return _check(shown, API_HELD, "not asked: there is no credential", warning=True)
        answer = await ask_for_free(settings, name)
    except OrchestratorError as exc:
        return _check(shown, API_HELD, str(exc), advice="mend the setting")
    variable = credential.variable if credential is not None else ""
    return api_check(base_url_of(settings, name), variable, answer, name)


def _shown_name(name: ProviderName) -> str:
    return "model API" if name == "anthropic" else f"{PROVIDERS[name].label} API"


API_HELD = "the model API answers, and takes the credential"


def api_check(
    address: str, variable: str, answer: FreeAnswer, name: ProviderName = "anthropic"
) -> Check:
    """What a free request to a model API has shown. Pure."""
    shown, provider = _shown_name(name), PROVIDERS[name]
    words = f"{answer.status} {answer.said}".strip() if answer.status else answer.said
    match answer.status:
        case 0:
            advice = (
                f"check {provider.base_variable}, the network, and the proxy settings (HTTPS_PROXY)"
            )
            return _check(shown, API_HELD, f"{address}: {words}", advice=advice)
        case 401 | 403:
            advice = f"set {variable or provider.key_variables} to one that it takes"
            return _check(shown, API_HELD, f"{address} refuses it: {words}", advice=advice)
        case 404 | 405:
            said = f"{address} answers, but lists no models: whether it takes the key is not known"
            return _check(shown, API_HELD, said, warning=True)
        case status if 300 <= status < 400:
            advice = f"set {provider.base_variable} to the address that it leads to"
            return _check(shown, API_HELD, f"{address} redirects", advice=advice)
        case status if status >= 400:
            said = f"{address} answers {words}"
            advice = "try again later"
            return _check(shown, API_HELD, said, advice=advice, warning=True)
    return _check(shown, API_HELD, f"{address} answers{f' to {variable}' * bool(variable)}")


def _engine(settings: Settings) -> list[Check]:
    held = "there is a container engine, and you may use it"
    try:
        engine = connect(settings)
    except OrchestratorError as exc:
        first, _, tried = str(exc).partition(" Tried:")
        return [_check("socket", held, tried.strip() or first, advice=first.rstrip("."))]
    found = [_check("socket", held, engine.address)]
    try:
        with engine.translated():
            root = Path(str(engine.api.info().get("DockerRootDir", "")))
        if engine.address.startswith("unix://") and root.is_absolute() and root.is_dir():
            free = disk_check({root: shutil.disk_usage(root).free})
            held = "there is room where the engine keeps images"
            found.append(free.model_copy(update={"name": "engine disk", "promise": held}))
    except (OrchestratorError, OSError):  # what it keeps where is its own business
        return found
    finally:
        engine.close()
    return found


def _check(name: str, held: str, detail: str, *, advice: str = "", warning: bool = False) -> Check:
    """A check; with advice it does not hold, unless it is only a warning."""
    ok = warning or not advice
    return Check(name=name, promise=held, ok=ok, detail=detail, advice=advice, warning=warning)
