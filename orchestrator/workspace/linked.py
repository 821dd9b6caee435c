"""Names that files of a workspace have besides their own, by way of symbolic links. Pure.

A tool that obeys CLAUDE.md or .github/workflows follows links to get there, so what acts by such a
name acts wherever it really lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from orchestrator.links import MAX_HOPS
from orchestrator.workspace.acts import link_acts, why_it_acts
from orchestrator.workspace.paths import parents, plain_name, plain_parts

MAX_NAMES = 500
"""Of one file, that are looked at."""

TOO_MANY = "more links lead to it than can be followed, and one may act"


class LinkedNames:
    """Which other names a path has. `links` are by their paths below the root, with the targets
    that are written in them.
    """

    def __init__(self, links: Mapping[str, str], root: PurePath) -> None:
        self._root = root
        self._links = {plain_path(path): target for path, target in links.items()}
        self._ends: defaultdict[str, list[str]] = defaultdict(list)
        """Links by where they end: all in there has their name before its own."""
        self._through: defaultdict[str, list[str]] = defaultdict(list)
        """Links by the other links on their way."""
        led = {link: self._led(link) for link in self._links}
        self._acting = _acting(led)
        for link in self._acting:
            through, end = led[link]
            for each in through:
                self._through[each].append(link)
            if end is not None:
                self._ends[end].append(link)

    @property
    def places(self) -> frozenset[str]:
        """Where links are that may act, and where they lead through and end, in the plain form of a
        path; "" is the root.
        """
        return frozenset((*self._acting, *self._ends, *self._through))

    def why_it_acts(self, path: str, *, is_link: bool = False) -> str:
        """What a file does without being asked to, under any of its names; empty if none acts. A
        link acts also if it may lead to a folder in which something does.
        """
        rule = link_acts if is_link else why_it_acts
        first = plain_path(path)
        waiting: list[tuple[str, frozenset[str]]] = [(first, frozenset())]
        seen = {first}
        for name, used in waiting:  # which grows meanwhile
            if why := rule(name):
                return why
            if len(seen) > MAX_NAMES:
                return TOO_MANY
            for link, other in self._others(name):
                # Each link once: one that leads to where it is itself gives names without end.
                if link not in used and other not in seen:
                    seen.add(other)
                    waiting.append((other, used | {link}))
        return ""

    def _others(self, name: str) -> Iterator[tuple[str, str]]:
        """Links, and the names that they give to what is at a path."""
        for place in ("", *parents(name), name):
            rest = name[len(place) :].lstrip("/")
            for link in self._ends.get(place, ()):
                yield link, f"{link}/{rest}" if rest else link
        yield from ((link, link) for link in self._through.get(name, ()))

    def _led(self, link: str) -> tuple[list[str], str | None]:
        """The links that a link leads through, and where it ends; None for outside the root."""
        through: list[str] = []
        at, ahead, target = link.split("/")[:-1], list[str](), self._links[link]
        for _ in range(MAX_HOPS):
            if target.startswith("/"):
                if not PurePath(target).is_relative_to(self._root):
                    return through, None
                at, target = [], str(PurePath(target).relative_to(self._root))
            ahead[:0] = [name for name in target.split("/") if name not in ("", ".")]
            target = ""
            while ahead and not target:
                name = ahead.pop(0)
                if name == "..":
                    if not at:
                        return through, None
                    at = at[:-1]
                    continue
                here = "/".join((*at, plain_name(name)))
                target = self._links.get(here, "")
                if target:
                    through.append(here)
                else:
                    at = here.split("/")
            if not target:
                return through, "/".join(at)
        return through, None


def _acting(led: Mapping[str, tuple[list[str], str | None]]) -> list[str]:
    """The links that act by a name of theirs, or may lead to a folder in which something does:
    those that are called so, and those in folders to which such ones lead.
    """
    found = [link for link in led if link_acts(link)]
    left = [link for link in led if not link_acts(link)]
    ends: set[str | None] = set()
    while more := {led[link][1] for link in found} - ends:
        ends |= more
        found += [link for link in left if not ends.isdisjoint(("", *parents(link)))]
        left = [link for link in left if ends.isdisjoint(("", *parents(link)))]
    return found


def plain_path(path: str) -> str:
    """A path as the most forgiving filesystem takes it."""
    return "/".join(plain_parts(path))
