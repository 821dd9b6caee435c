"""May a container see this directory? Symbolic links resolved, then roots and taboos."""

from __future__ import annotations

from pathlib import Path

from orchestrator.domain import Frozen
from orchestrator.domain.container import Bind, ContainerSpec
from orchestrator.errors import MountRefused

SYSTEM_TREES = tuple(
    Path("/") / name
    for name in (
        *("bin", "boot", "dev", "etc", "lib", "proc", "run", "sbin", "sys", "usr"),
        *("var/run", "var/lib/docker", "var/lib/containers"),
    )
)

CREDENTIAL_FOLDERS = frozenset(
    (
        ".ssh",
        ".aws",
        ".gnupg",
        ".kube",
        ".docker",
        ".config",
        ".claude",
        ".azure",
        ".password-store",
    )
)


class MountPolicy(Frozen):
    """What the operator lets containers see."""

    roots: tuple[Path, ...]
    home: Path
    engine_is_local: bool = True
    """Paths are the engine's: on another machine they cannot be looked at from here."""

    def checked(self, spec: ContainerSpec) -> ContainerSpec:
        """The spec with every bind source resolved; MountRefused if one is not allowed."""
        mounts = tuple(
            mount.model_copy(update={"source": str(self._allowed(mount))})
            if isinstance(mount, Bind)
            else mount
            for mount in spec.mounts
        )
        return spec.model_copy(update={"mounts": mounts})

    def _allowed(self, mount: Bind) -> Path:
        given = Path(mount.source)
        if not given.is_absolute() or "\0" in mount.source:
            raise MountRefused(f"{mount.source!r} is not an absolute path; give one from / on")
        path, roots, home = given, self.roots, self.home
        if self.engine_is_local:
            path, home = given.resolve(), self.home.resolve()
            roots = tuple(root.resolve() for root in self.roots)
            if not path.exists():
                raise MountRefused(f"{given} does not exist, so no container can be shown it")
            if not path.is_dir():
                raise MountRefused(f"{_shown(given, path)} is not a directory; share one of those")
        self._refuse_taboo(given, path, home)
        below = [root for root in roots if root != Path("/") and path.is_relative_to(root)]
        if not below:
            allowed = ", ".join(str(root) for root in roots) or "none"
            raise MountRefused(
                f"{_shown(given, path)} is outside the allowed roots ({allowed}); "
                "add one with ORCHESTRATOR_ALLOWED_ROOTS"
            )
        return path

    def _refuse_taboo(self, given: Path, path: Path, home: Path) -> None:
        shown = _shown(given, path)
        if path == Path("/"):
            raise MountRefused(f"{shown} is the whole machine; share one directory of it")
        if path == home or home.is_relative_to(path):
            raise MountRefused(f"{shown} holds your whole home; share one directory below it")
        if any(path.is_relative_to(tree) for tree in SYSTEM_TREES):
            raise MountRefused(f"{shown} belongs to the system (or to the engine's socket)")
        if path.is_relative_to(home):
            secret = CREDENTIAL_FOLDERS.intersection(path.relative_to(home).parts)
            if secret:
                raise MountRefused(f"{shown} is a place for credentials ({', '.join(secret)})")


def _shown(given: Path, path: Path) -> str:
    return str(given) if given == path else f"{given} (which is {path})"
