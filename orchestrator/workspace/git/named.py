"""Files of a workspace that git's own configuration names: hooks, includes, drivers, commands.

Git on this machine runs or obeys them, so they are git's own as much as what is in a .git. Read
are the repository's configuration, that of its submodules and worktrees, and the user's, with what
they include; conditions of includes are taken to hold.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orchestrator.domain import Frozen
from orchestrator.links import led_through
from orchestrator.workspace.git.config import Setting, read_config
from orchestrator.workspace.paths import in_git

MAX_NAMED_CONFIG_BYTES = 1024 * 1024
MAX_CONFIGS = 256
"""Files of configuration that are read for one workspace."""

WORDS = re.compile(r"[\s;|&()<>=\"'`${}!,:]+")
"""What stands between the words of a command."""

ADDRESS_KEYS = frozenset(("url", "pushurl", "fetch", "push", "merge", "remote", "worktree"))
"""Keys whose values are no files of the workspace, whatever they look like."""

HARMLESS = frozenset(("blame.ignorerevsfile", "commit.template", "mailmap.file"))
"""Settings that name files which git only reads."""

BARE_KEYS = frozenset(
    (
        *("attributesfile", "excludesfile", "textconv", "command", "clean", "smudge", "process"),
        *("driver", "fsmonitor", "sshcommand", "external"),
    )
)
"""Keys in whose values also a word without a slash or a dot is taken for a file that is there."""

FOLDER_KEYS = frozenset(("core.hookspath", "init.templatedir"))
WORKTREE = "core.worktree"
INCLUDES = frozenset(("include.path", "includeif.path"))

HUSKY = ".husky"
"""`core.hooksPath` is .husky/_ there, and what is in that runs what is beside it."""


class NamedByGit(Frozen):
    """A place in the workspace, and which setting names it."""

    path: Path
    """Absolute; no symbolic link leads there, and it may be one."""
    setting: str


def named_by_git(
    root: Path,
    folders: Iterable[Path],
    home: Path | None = None,
    configs: Sequence[Path] = (),
) -> tuple[NamedByGit, ...]:
    """What is in `root`, or would be, and is named by the configuration of a repository whose
    working tree is one of `folders`, or of the one that `root` itself is in. Blocks.
    """
    found: dict[Path, str] = {}
    for top in dict.fromkeys((*_above(root), *folders)):
        for own, tree in _repositories(top):
            settings = [*_settings(own, home, configs)]
            trees = [tree, *(base / s.value for s, base in settings if _name(s) == WORKTREE)]
            named = [
                (_name(setting), place)
                for setting, base in settings
                for place in _places(setting, base, trees, home)
            ]
            for name, place in (*named, *_linked_hooks(own, named)):
                for path in led_through(place):
                    inside = root if root.is_relative_to(path) else path
                    if inside.is_relative_to(root) and not in_git(str(path)[len(str(root)) :]):
                        found.setdefault(_whole_husky(inside, root), name)
    return tuple(NamedByGit(path=path, setting=name) for path, name in found.items())


def _above(root: Path) -> Iterator[Path]:
    """The working tree that a directory is in, if it is in one."""
    for folder in (root, *root.parents):
        if os.path.lexists(folder / ".git"):
            yield folder
            return


def _repositories(top: Path) -> Iterator[tuple[Path, Path]]:
    """The git directory of a working tree and those of its submodules, with where they are used."""
    own = _git_dir(top)
    if own is None:
        return
    yield own, top
    waiting, seen = [own / "modules"], 0
    while waiting and seen < MAX_CONFIGS:
        folder = waiting.pop()
        seen += 1
        if (folder / "HEAD").is_file():
            yield folder, folder  # core.worktree says where it is used
            waiting.append(folder / "modules")
            continue
        try:
            waiting += [Path(row) for row in os.scandir(folder) if row.is_dir()]
        except OSError:
            continue


def _settings(
    own: Path, home: Path | None, configs: Sequence[Path]
) -> Iterator[tuple[Setting, Path]]:
    """Each setting, and the folder of the file that it is in."""
    common = _config_text(own / "commondir").partition("\n")[0].strip()
    shared = own / common if common else own
    waiting = [own / "config.worktree", shared / "config.worktree", shared / "config"]
    if home is not None:
        waiting += [home / ".gitconfig", home / ".config/git/config", Path("/etc/gitconfig")]
    waiting += configs
    seen: set[Path] = set()
    while waiting and len(seen) < MAX_CONFIGS:
        config = waiting.pop()
        if config in seen:
            continue
        seen.add(config)
        for setting in read_config(_config_text(config)):
            yield setting, config.parent
            if _name(setting) in INCLUDES:
                waiting.append(_expanded(setting.value, config.parent, home))


def _linked_hooks(own: Path, named: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    """Hooks that are links: they may lead into the working tree."""
    folders = [own / "hooks", *(place for name, place in named if name in FOLDER_KEYS)]
    common = _config_text(own / "commondir").partition("\n")[0].strip()
    for folder in (*folders, *([own / common / "hooks"] if common else [])):
        try:
            rows = [*os.scandir(folder)]
        except OSError:
            continue
        yield from (("hooks", Path(row)) for row in rows[:MAX_CONFIGS] if row.is_symlink())


def _git_dir(top: Path) -> Path | None:
    """Where a working tree's .git leads; a bare repository, or whatever is one, is its own."""
    place = top / ".git"
    if not os.path.lexists(place):
        return top if (top / "HEAD").is_file() else None
    if place.is_dir():
        return place
    named = _config_text(place).partition("\n")[0]
    if not named.startswith("gitdir:"):
        return None
    return Path(os.path.normpath(top / named.removeprefix("gitdir:").strip()))


def _places(
    setting: Setting, base: Path, trees: Iterable[Path], home: Path | None
) -> Iterator[Path]:
    """Where what a setting names is, or would be."""
    name, value = _name(setting), setting.value
    if setting.key in ADDRESS_KEYS or name in HARMLESS or not value:
        return
    if name in INCLUDES:
        yield _expanded(value, base, home)
        return
    if name in FOLDER_KEYS:
        yield from (_expanded(value, tree, home) for tree in trees)
        return
    for word in dict.fromkeys((value, *WORDS.split(value))):
        if not re.search(r"[./]", word) and setting.key not in BARE_KEYS:
            continue
        for tree in trees:
            place = _expanded(word, tree, home)
            if word.startswith(("./", "../")) and not os.path.lexists(place):
                yield place  # git will run it once somebody has made it
            for each in (place, tree / word.lstrip("/")):
                if _is_file(each):
                    yield each


def _expanded(value: str, base: Path, home: Path | None) -> Path:
    if value.startswith("~/") and home is not None:
        return home / value[2:]
    return base / value


def _whole_husky(path: Path, root: Path) -> Path:
    names = path.relative_to(root).parts
    for depth, name in enumerate(names):
        if name.casefold() == HUSKY:
            return root.joinpath(*names[: depth + 1])
    return path


def _name(setting: Setting) -> str:
    return f"{setting.section}.{setting.key}"


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _config_text(path: Path) -> str:
    """The beginning of a file of the user's own; empty if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        text = os.read(fd, MAX_NAMED_CONFIG_BYTES).decode(errors="replace")
        return text.replace("\0", "")  # which no path can hold
    except OSError:
        return ""
    finally:
        os.close(fd)
