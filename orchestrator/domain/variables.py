"""${VAR} and ${VAR:-default}: text that is filled in when a run begins, and never before.

A spec is printed, compared and stored; what a variable holds may be a secret. So a spec keeps the
name, and the value goes from the environment into the container and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from orchestrator.errors import VariableMissing

_VARIABLE = re.compile(
    r"\$\$\{"  # $${ is how to write ${ itself
    r"|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^{}]*)?\}"
    r"|\$\{(?P<junk>)"
)


def check_variables(text: str) -> str:
    """The same text, or ValueError if a ${ in it begins nothing that we understand."""
    for match in _VARIABLE.finditer(text):
        if match["junk"] is not None:
            raise ValueError(
                "has a ${ that begins no variable; allowed: ${NAME}, ${NAME:-default}, "
                "and $${ for the two characters themselves"
            )
    return text


Template = Annotated[str, AfterValidator(check_variables)]
"""Text that may hold variables."""


def variables(text: str) -> tuple[str, ...]:
    """The names in a text, in order, each once."""
    names = (match["name"] for match in _VARIABLE.finditer(text))
    return tuple(dict.fromkeys(name for name in names if name))


def needed(text: str) -> tuple[str, ...]:
    """Those of them that have no default, in one place at least."""
    found = (match["name"] for match in _VARIABLE.finditer(text) if match["default"] is None)
    return tuple(dict.fromkeys(name for name in found if name))


def expand(text: str, environ: Mapping[str, str]) -> str:
    """The text with its variables filled in; VariableMissing if one is not set.

    As in a shell, a default stands in for a variable that is not set or empty.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if name is None:
            return "${"
        if default is not None:
            return environ.get(name) or default.removeprefix(":-")
        if name not in environ:
            raise VariableMissing(
                f"the variable {name} is not set in the orchestrator's environment; "
                f"set it, or write ${{{name}:-default}}"
            )
        return environ[name]

    return _VARIABLE.sub(value, text)
