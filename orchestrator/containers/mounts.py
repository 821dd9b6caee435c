"""May a container see this directory? Symbolic links resolved, then roots and taboos."""

from __future__ import annotations

import fcntl
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from orchestrator.domain import Frozen
from orchestrator.domain.container import WORKSPACE, Bind, ContainerSpec, Mount
from orchestrator.errors import MountRefused
from orchestrator.links import led_through

SYSTEM_TREES = tuple(
    Path("/") / name
    for name in (
        *("bin", "boot", "dev", "etc", "lib", "proc", "run", "sbin", "sys", "usr"),
        *("var/run", "var/lib/docker", "var/lib/containers"),
    )
)

CREDENTIAL_FOLDERS = frozenset(
    (
        *(".ssh", ".aws", ".gnupg", ".kube", ".docker", ".config", ".claude", ".azure"),
        *(".password-store", ".gcloud", ".oci", ".mozilla", ".thunderbird", ".pki", "appdata"),
        *(".terraform.d", ".codex", ".gemini", ".minikube"),
        *(".rd", ".lima", ".colima", ".orbstack"),
    )
)
"""Where programs keep credentials, and engines their sockets: never shown, whoever names it."""

CREDENTIAL_PLACES = (
    *(".local/share/keyrings", ".local/share/kwalletd", ".local/share/containers", ".var/app"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml"),
    *(".gradle/gradle.properties", ".bundle/config", ".nuget/NuGet", ".composer/auth.json"),
    *("snap", "Library/Keychains", "Library/Application Support", "Library/Cookies"),
)
"""The same, from a home on: not shown, nor anything that holds one."""


FIRST_PERSON, NOBODY = 1000, 65534
"""User ids: from the one on, up to the other, accounts are people's, and their homes are homes."""


def no_files() -> tuple[Path, ...]:
    """There are no secrets in files."""
    return ()


class CheckedSpec(Frozen):
    """A spec whose mounts are allowed, and what each of them must turn out to be."""

    spec: ContainerSpec
    identities: dict[str, str] = {}
    """Target -> device:inode of the directory that was looked at."""


class JudgedDirectory(Frozen):
    """A directory of this machine that is for agents, and which one it was that was judged.

    Code that opens the path later compares: another may have taken its place by then.
    """

    path: Path
    """Symbolic links resolved."""
    identity: str
    """device:inode; empty if the directory is on another machine."""


class MountPolicy(Frozen):
    """What the operator lets containers see."""

    roots: tuple[Path, ...]
    home: Path
    own: tuple[Path, ...] = ()
    """The orchestrator's own files: an agent that could write them could give itself any right."""
    hidden: tuple[Path, ...] = ()
    """Those of them that hold secrets, or what other agents did: no agent may read them either."""
    secret_files: Callable[[], tuple[Path, ...]] = no_files
    """Files that hold the operator's secrets, and that make them: asked each time."""
    git_configs: tuple[Path, ...] = ()
    """Files that the operator's git reads for every repository."""
    engine_sockets: tuple[Path, ...] = ()
    """A program that reaches one of these is root on the engine's machine, even read-only."""
    engine_is_local: bool = True
    """Paths are the engine's: on another machine they cannot be looked at from here."""

    def checked(self, spec: ContainerSpec) -> CheckedSpec:
        """The spec with every bind source resolved; MountRefused if one is not allowed."""
        mounts: list[Mount] = []
        identities: dict[str, str] = {}
        for mount in spec.mounts:
            if not isinstance(mount, Bind):
                mounts.append(mount)
                continue
            path, identity = self._allowed(mount)
            mounts.append(mount.model_copy(update={"source": str(path)}))
            if identity:
                identities[mount.target] = identity
        return CheckedSpec(
            spec=spec.model_copy(update={"mounts": tuple(mounts)}), identities=identities
        )

    def directory(self, path: Path, *, read_only: bool = True) -> Path:
        """Where a directory of this machine really is; MountRefused if it is not for agents."""
        return self.judged(path, read_only=read_only).path

    def judged(self, path: Path, *, read_only: bool = True) -> JudgedDirectory:
        """The same, with the identity to compare when it is opened."""
        real, identity = self._allowed(Bind(source=str(path), read_only=read_only))
        return JudgedDirectory(path=real, identity=identity)

    def keeps_from_agents(self, path: Path) -> bool:
        """Whether a file of the agents directory, by its real path, holds what no agent may read.
        Where all of that directory is inside something hidden, its agents are not. Blocks.
        """
        kept = [each for file in self.secret_files() for each in (file, self._real(file))]
        own = [self._real(each) for each in self.own]
        hidden = [self._real(each) for each in self.hidden]
        kept += [each for each in hidden if not any(one.is_relative_to(each) for one in own)]
        return any(path.is_relative_to(each) for each in kept)

    def _allowed(self, mount: Bind) -> tuple[Path, str]:
        given = Path(mount.source)
        if not given.is_absolute() or "\0" in mount.source:
            raise MountRefused(f"{mount.source!r} is not an absolute path; give one from / on")
        if not self.engine_is_local and ".." in given.parts:
            raise MountRefused(f"{given} must not contain .. on another machine's engine")
        over_itself = mount.read_only and mount.target.startswith(f"{WORKSPACE}/")
        path, identity = (
            (given, "") if not self.engine_is_local else _opened(given, file=over_itself)
        )
        if self.engine_is_local and mount.identity not in ("", identity):
            raise MountRefused(f"another directory has just taken the place of {given}; try again")
        self._refuse_taboo(given, path, mount.read_only)
        roots = [self._real(root) for root in self.roots]
        if not any(root != Path("/") and path.is_relative_to(root) for root in roots):
            allowed = ", ".join(str(root) for root in roots) or "none"
            raise MountRefused(
                f"{_shown(given, path)} is outside the allowed roots ({allowed}); "
                "add one with ORCHESTRATOR_ALLOWED_ROOTS"
            )
        if mount.within and not path.is_relative_to(mount.within):
            raise MountRefused(
                f"{_shown(given, path)} is not in {mount.within}, and you have not trusted "
                "the agents there to write elsewhere; see `orchestrator trust`"
            )
        return path, identity

    def _refuse_taboo(self, given: Path, path: Path, read_only: bool) -> None:
        shown, home = _shown(given, path), self._real(self.home)
        if path == Path("/"):
            raise MountRefused(f"{shown} is the whole machine; share one directory of it")
        if home.is_relative_to(path):
            raise MountRefused(f"{shown} holds your whole home; share one directory below it")
        if any(other.is_relative_to(path) for other in self._homes()):
            raise MountRefused(f"{shown} holds a user's whole home; share one directory below it")
        if any(path.is_relative_to(tree) for tree in SYSTEM_TREES):
            raise MountRefused(f"{shown} belongs to the system (or to the engine's socket)")
        if any(self._real(socket).is_relative_to(path) for socket in self.engine_sockets):
            raise MountRefused(f"{shown} holds the socket of a container engine")
        self._refuse_credentials(shown, path)
        for kept in self.secret_files():
            if any(_overlap(each, path) for each in (kept, self._real(kept))):
                raise MountRefused(
                    f"{shown} holds {kept}, which the operator's secrets are kept in or made by; "
                    "no agent may see it: share another directory, or keep that one elsewhere"
                )
        for hidden in map(self._real, self.hidden):
            if _overlap(hidden, path):
                raise MountRefused(
                    f"{shown} holds the orchestrator's own {hidden}, which no agent may see; "
                    "share another directory, or keep that one elsewhere"
                )
        for own in self.own_places() if not read_only else ():
            if _overlap(own, path):
                raise MountRefused(
                    f"{shown} holds the orchestrator's own {own}, which no agent may write; "
                    "share a directory below it, or read-only"
                )

    def _refuse_credentials(self, shown: str, path: Path) -> None:
        roots = [self._real(root) for root in self.roots]
        homes = (self._real(self.home), *self._homes())
        # A root may be another user's home: the orchestrator can run as another user.
        for place in (*homes, *roots):
            below = path.relative_to(place).parts if path.is_relative_to(place) else ()
            secret = CREDENTIAL_FOLDERS.intersection(part.casefold() for part in below)
            if secret:
                raise MountRefused(f"{shown} is a place for credentials ({', '.join(secret)})")
        for home in (home for home in homes if path != home and path.is_relative_to(home)):
            top = home / path.relative_to(home).parts[0]
            named = (root for root in roots if root.is_relative_to(top))
            if top.name.startswith(".") and not any(path.is_relative_to(root) for root in named):
                raise MountRefused(
                    f"{shown} is in {top}, where programs may keep credentials; if it is for "
                    f"agents, name it in ORCHESTRATOR_ALLOWED_ROOTS"
                )
            for kept in (home / each for each in CREDENTIAL_PLACES):
                if _is_in(path, kept) or (_is_in(kept, path) and os.path.lexists(kept)):
                    raise MountRefused(f"{shown} is, or holds, a place for credentials ({kept})")

    def _homes(self) -> tuple[Path, ...]:
        return homes_of_people() if self.engine_is_local else ()

    def own_places(self) -> tuple[Path, ...]:
        """The orchestrator's own files, and every link that leads to one of them. Blocks."""
        if not self.engine_is_local:
            return self.own
        entries = [*self.own, *(entry for own in self.own for entry in _links_in(own))]
        return tuple({place: None for entry in entries for place in led_through(entry)})

    def _real(self, path: Path) -> Path:
        return path.resolve() if self.engine_is_local else path


@cache
def homes_of_people() -> tuple[Path, ...]:
    """Where the people live who have an account on this machine."""
    return tuple(
        Path(user.pw_dir).resolve()
        for user in pwd.getpwall()
        if user.pw_uid == 0 or FIRST_PERSON <= user.pw_uid < NOBODY
        if user.pw_dir.startswith("/") and user.pw_dir != "/"
    )


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _is_in(path: Path, folder: Path) -> bool:
    """In whatever letters: on some file systems they do not count."""
    parts = [part.casefold() for part in path.parts]
    above = [part.casefold() for part in folder.parts]
    return parts[: len(above)] == above


def _links_in(folder: Path) -> Iterator[Path]:
    """Symbolic links in a directory, and in the directories in it."""
    for pattern in ("*", "*/*"):
        with suppress(OSError):
            yield from (path for path in folder.glob(pattern) if path.is_symlink())


def _opened(given: Path, *, file: bool = False) -> tuple[Path, str]:
    """Where a directory really is, and which one: asked of the open directory, not of its name.

    A `file` is taken where one is mounted over itself in a workspace, such as the .git of a linked
    worktree or of a submodule.
    """
    alone = (file or given.name == ".git") and given.is_file() and not given.is_symlink()
    kind = os.O_NOFOLLOW if alone else os.O_DIRECTORY
    try:
        fd = os.open(given, os.O_RDONLY | kind | getattr(os, "O_PATH", 0))
    except FileNotFoundError as exc:
        raise MountRefused(f"{given} does not exist, so no agent can be shown it") from exc
    except NotADirectoryError as exc:
        raise MountRefused(f"{given} is not a directory; name one") from exc
    except OSError as exc:
        raise MountRefused(f"{given} cannot be opened: {exc.strerror}") from exc
    try:
        status = os.fstat(fd)
        return _path_of(fd) or given.resolve(), f"{status.st_dev}:{status.st_ino}"
    finally:
        os.close(fd)


def _path_of(fd: int) -> Path | None:
    """What the kernel calls it: links resolved and, where case does not count, in its own case."""
    link = Path(f"/proc/self/fd/{fd}")
    if link.is_symlink():
        return link.readlink()
    get_path = getattr(fcntl, "F_GETPATH", None)  # macOS
    if get_path is None:
        return None
    return Path(os.fsdecode(fcntl.fcntl(fd, get_path, bytes(1024)).rstrip(b"\0")))


def _shown(given: Path, path: Path) -> str:
    return str(given) if given == path else f"{given} (which is {path})"
