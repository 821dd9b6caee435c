"""Which words of a command line, of an environment or of a URL are secrets, as far as can be seen.
Pure.

A word that is taken for one by mistake costs its reader a line of secrets.yaml; one that is
overlooked is committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

SECRET_WORDS = re.compile(r"TOKEN|KEY|SECRET|PASSW|PASSPHRASE|PWD|CREDENTIAL|AUTH", re.IGNORECASE)
"""In the name of a variable or a header that holds one."""

_SECRET_OPTION = re.compile(
    r"(token|key|secret|password|passwd|passphrase|pwd|pat|credentials?|auth|bearer|cookie)$",
    re.IGNORECASE,
)
"""At the end of an option's name; `--token-file` names a file."""

_HEADER = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9-]*):\s*(?P<value>\S.*)")

_KNOWN_TOKEN = re.compile(
    r"(gh[opsur]_|github_pat_|glpat-|sk-|sk_(live|test)_|rk_live_|xox[abeoprs]-|xapp-|ntn_|secret_"
    r"|hf_|npm_|pypi-|dop_v1_|lin_api_|shp(at|ss)_|figd_|SG\.|AIza|ya29\.|AKIA|ASIA|eyJ)"
    r"[A-Za-z0-9_./+=-]{8,}|-----BEGIN |(Bearer|Basic|Token) +\S{6,}"
)
"""How tokens of well-known services begin."""

_RANDOM = re.compile(r"[A-Za-z0-9_+=-]{20,}")
_CHANGES = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]|(?<=[a-z])[A-Z]")

RANDOM_CHANGES = 4
"""Between letters and digits, or small letters and capitals: words and versions have fewer."""


class SecretWord(NamedTuple):
    """A word of a command line of which a part is a secret."""

    at: int
    before: str
    """What stands before it in the same word, such as `--token=`."""
    named: str
    """What it is called there, such as `token`; "" if nothing says."""


def looks_secret(text: str) -> bool:
    """Whether a value looks like a token, whatever it is called."""
    if is_variable(text):
        return False
    url = "://" in text and any(secret_parts(text))
    return (
        url
        or bool(_KNOWN_TOKEN.search(text))
        or any(map(_is_random, re.split(r"[\s/:,;&?]", text)))
    )


def is_variable(text: str) -> bool:
    """Whether it is only the name of a variable of the orchestrator's."""
    return re.fullmatch(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", text) is not None


def secret_words(words: Sequence[str]) -> Iterator[SecretWord]:
    """The words of a command line that hold a secret: `--token X`, `--token=X`, `-e TOKEN=X`,
    `--header "Authorization: X"`, an address with a password, or what looks like a token.
    """
    option = ""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not value.strip("=") or _is_token(name):  # the end of a token in base64
            name, equals, value = word, "", ""
        bare = name.lstrip("-")
        header = _HEADER.fullmatch(word)
        if is_variable(word):
            option = ""
        elif option and not word.startswith("-"):
            yield SecretWord(at, "", option)
            option = ""
        elif equals and value and not is_variable(value) and _names_one(name, bare):
            yield SecretWord(at, name + equals, bare)
        elif header and SECRET_WORDS.search(header["name"]):
            yield SecretWord(at, "", header["name"])
        elif looks_secret(word):
            known = bool(equals) and re.fullmatch(r"-*[\w.-]+", name) is not None
            yield SecretWord(at, name + equals if known else "", bare if known else "")
        else:
            named = word.startswith("-") and not equals and _SECRET_OPTION.search(bare)
            option = bare if named else ""


def secret_parts(url: str) -> Iterator[str]:
    """What of a URL looks like a secret: `a user and a password`, `what is behind key=`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password or (parts.username and looks_secret(parts.username)):
        yield "a user and a password"
    for name, value in parse_qsl(parts.query):
        if value and not is_variable(value) and (SECRET_WORDS.search(name) or _is_token(value)):
            yield f"what is behind {name}="
    if any(map(_is_token, parts.path.split("/"))):
        yield "a part of its path"


def _names_one(name: str, bare: str) -> bool:
    if name.startswith("-"):
        return _SECRET_OPTION.search(bare) is not None
    return re.fullmatch(r"\w+", bare) is not None and SECRET_WORDS.search(bare) is not None


def _is_token(text: str) -> bool:
    return bool(_KNOWN_TOKEN.search(text)) or _is_random(text)


def _is_random(text: str) -> bool:
    found = _RANDOM.fullmatch(text)
    return found is not None and len(_CHANGES.findall(text)) >= RANDOM_CHANGES
