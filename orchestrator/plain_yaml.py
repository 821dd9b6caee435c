"""YAML with nothing in it that lets a small text become a large value, or a key count twice."""

from __future__ import annotations

from typing import Any

import yaml

DEPTH = 64
"""How many lists and mappings may stand inside each other."""


class PlainLoader(yaml.SafeLoader):
    """Without anchors, a few lines of which unfold to gigabytes, and without tags."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call] # no stub for it
        if refused := _refused(event, self.depth):
            raise yaml.composer.ComposerError(None, None, refused, event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node.value, str):
                continue  # a list or a mapping, which is no key
            if key_node.value in seen:
                said = f"{key_node.value[:60]!r} is given twice; remove one of them"
                raise yaml.constructor.ConstructorError(None, None, said, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def load_plain(text: str | bytes) -> object:
    """The value that a text describes; yaml.YAMLError, ValueError or RecursionError if none."""
    return yaml.load(text, PlainLoader)  # noqa: S506 a safe loader, and safer


def _refused(event: Any, depth: int) -> str | None:
    if isinstance(event, yaml.AliasEvent):
        return "aliases are not understood here"
    if event.anchor is not None:
        return "anchors are not understood here"
    if event.tag is not None:
        return "tags are not understood here"
    return f"more than {DEPTH} levels deep; make it flatter" if depth > DEPTH else None
