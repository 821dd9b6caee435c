"""The image that ours is built on: one that is there, else pulled, else made on this machine."""

from __future__ import annotations

import queue
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import docker.errors

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.images.fetching import Progress
from orchestrator.errors import BaseMissing, ImageBuildFailed
from orchestrator.settings import Settings

PULLED_BASE = "debian:bookworm-slim"
"""What is pulled where pulling works."""

MADE_BASE = "subagent-orchestrator/base:bookworm"
"""What is made where it does not."""

SUITE = "bookworm"
"""The Debian release of both."""

BASE_LABEL = "orchestrator.image=base"

PULL_SECONDS = 600
"""A whole pull: 30 MB on a slow line."""

PULL_SILENCE_SECONDS = 60
"""A registry that neither sends nor refuses is given up after so long."""

BASE_IMAGE_SECONDS = 1200
"""mmdebstrap fetches and unpacks about 60 packages; 25 s on a good line."""

ERROR_TAIL_LINES = 5
"""How many last lines of a failed command an error repeats."""

APT_DIR = Path("/etc/apt")

_LEAN = (
    # The same paths that Debian's own slim images leave out; dpkg remembers them in the image.
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)


def base_candidates(settings: Settings) -> tuple[str, ...]:
    """The images ours may be built on, best first."""
    return (settings.base_image,) if settings.base_image else (PULLED_BASE, MADE_BASE)


def image_exists(engine: Engine, name: str) -> bool:
    with engine.translated():
        try:
            engine.api.inspect_image(name)  # type: ignore[no-untyped-call]  # in types-docker
        except docker.errors.ImageNotFound:
            return False
    return True


def ensure_base(engine: Engine, settings: Settings, progress: Progress) -> str:
    """A base that is on the engine when this returns: its name."""
    candidates = base_candidates(settings)
    for name in candidates:
        if image_exists(engine, name):
            return name
    wanted = candidates[0]
    progress(f"pulling {wanted}")
    try:
        _pull(engine, wanted)
    except _PullFailed as exc:
        if settings.base_image:
            raise ImageBuildFailed(
                f"ORCHESTRATOR_BASE_IMAGE={wanted} is not on the engine and cannot be pulled: {exc}"
            ) from exc
        progress(f"{wanted} cannot be pulled: {exc}")
        make_base(engine, progress)
        return MADE_BASE
    return wanted


def make_base(engine: Engine, progress: Progress) -> None:
    """A minimal Debian made by mmdebstrap from this machine's own mirror, imported as MADE_BASE."""
    if shutil.which("mmdebstrap") is None:
        raise BaseMissing(
            f"{PULLED_BASE} cannot be pulled, and there is no mmdebstrap here to make a base with; "
            "on Debian or Ubuntu `apt-get install mmdebstrap`, elsewhere `docker load` an image "
            "and name it in ORCHESTRATOR_BASE_IMAGE"
        )
    progress("making a Debian base image with mmdebstrap, in about a minute")
    with engine.translated():
        arch = str(engine.api.version()["Arch"])
    with tempfile.TemporaryDirectory(prefix="orchestrator-base-") as scratch:
        archive = Path(scratch) / "base.tar"
        _mmdebstrap(archive, arch, debian_sources(_apt_sources(), SUITE))
        repository, tag = MADE_BASE.split(":")
        progress(f"importing {MADE_BASE}")
        with engine.translated(), archive.open("rb") as data:
            engine.api.import_image_from_data(
                data,
                repository=repository,
                tag=tag,
                changes=[f"LABEL {BASE_LABEL}", 'CMD ["bash"]'],
            )


def debian_sources(texts: Iterable[str], suite: str) -> tuple[str, ...]:
    """Source files of apt -> lines for the Debian archive of a suite, and nothing else.

    A machine has other archives as well (drivers, clouds, languages); none of them belongs in the
    base. Debian's is told by its suite, by the component main, by its path, and by its key.
    """
    lines: dict[str, None] = {}
    suites = (suite, f"{suite}-updates", f"{suite}-security")
    for text in texts:
        for entry in _entries(text):
            if "deb" not in entry["types"] or "main" not in entry["components"]:
                continue
            if any("debian-archive" not in key for key in entry["signed-by"]):
                continue
            for uri in entry["uris"]:
                if not re.fullmatch(r"https?://.*/debian(-security)?/?", uri):
                    continue
                for name in entry["suites"]:
                    if name in suites:
                        lines[f"deb {uri} {name} main"] = None
    # Without the suite itself (another release, or a mirror list) mmdebstrap's own default is best.
    return tuple(lines) if any(line.endswith(f" {suite} main") for line in lines) else ()


def _entries(text: str) -> Iterable[dict[str, list[str]]]:
    """Both formats of apt: one-line entries, and stanzas of `Field: values`."""
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in text.splitlines():
        old = re.fullmatch(r"\s*(deb|deb-src)\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
        if old:
            keys = re.findall(r"signed-by=(\S+)", old[2] or "", re.IGNORECASE)
            yield {
                "types": [old[1]],
                "uris": [old[3]],
                "suites": [old[4]],
                "components": old[5].split(),
                "signed-by": keys,
            }
    for stanza in re.split(r"\n\s*\n", text):
        unfolded = re.sub(r"\n[ \t]+", " ", stanza)
        pairs = (line.partition(":") for line in unfolded.splitlines() if ":" in line)
        fields = {name.strip().lower(): value.split() for name, _, value in pairs}
        if "uris" in fields and fields.get("enabled", ["yes"]) != ["no"]:
            names = ("types", "uris", "suites", "components", "signed-by")
            yield {name: fields.get(name, []) for name in names}


def _apt_sources() -> list[str]:
    files = [APT_DIR / "sources.list"]
    for pattern in ("*.list", "*.sources"):
        files.extend(sorted((APT_DIR / "sources.list.d").glob(pattern)))
    return [path.read_text(errors="replace") for path in files if path.is_file()]


def _mmdebstrap(archive: Path, arch: str, sources: tuple[str, ...]) -> None:
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--architectures={arch}"]
    argv += [f"--dpkgopt={option}" for option in _LEAN]
    argv += [SUITE, str(archive)]
    argv += ["-"] if sources else []
    try:
        done = subprocess.run(
            argv,
            input="\n".join(sources).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=BASE_IMAGE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ImageBuildFailed(
            f"mmdebstrap was not done after {BASE_IMAGE_SECONDS} s; is the package mirror "
            "reachable?"
        ) from exc
    if done.returncode:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-ERROR_TAIL_LINES:]
        raise ImageBuildFailed("mmdebstrap could not make a base:\n  " + "\n  ".join(tail))


class _PullFailed(Exception):
    """The engine could not fetch an image."""


def _pull(engine: Engine, name: str) -> None:
    """Pull, within bounds. docker-py waits for ever on a pull, so a thread does the waiting."""
    heard: queue.SimpleQueue[str | Exception | None] = queue.SimpleQueue()

    def pull() -> None:
        try:
            for event in engine.api.pull(name, stream=True, decode=True):
                if "error" in event:  # and on to the end: half read, the connection stays open
                    heard.put(_PullFailed(str(event["error"])))
                heard.put(str(event.get("status", "")))
            heard.put(None)
        except docker.errors.APIError as exc:
            heard.put(_PullFailed(str(exc.explanation or exc)))
        except Exception as exc:  # noqa: BLE001 the thread that waits must hear of it
            heard.put(_PullFailed(str(exc)))

    threading.Thread(target=pull, name=f"pull {name}", daemon=True).start()
    end = time.monotonic() + PULL_SECONDS
    while True:
        try:
            news = heard.get(timeout=min(PULL_SILENCE_SECONDS, max(0.0, end - time.monotonic())))
        except queue.Empty:
            raise _PullFailed("the registry did not answer in time") from None
        if news is None:
            return
        if isinstance(news, Exception):
            raise news
