"""Text or bytes that may hold a secret -> the same without it."""

from __future__ import annotations

import base64
import html
import itertools
import json
import re
import string
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.redaction import MIN_SECRET, PIECE, Redactor, _Undone

TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"

WRITTEN: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent-encoded": lambda text: quote(text, safe=""),
    "percent-encoded in lower case": lambda text: quote(text, safe="").replace("%2F", "%2f"),
    "percent-encoded throughout": lambda text: "".join(f"%{b:02X}" for b in text.encode()),
    "in a form": quote_plus,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON as it is": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON with slashes escaped": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64url": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "HTML": html.escape,
}

TRIED: dict[str, Callable[[str], str]] = {
    "HTML, in hex": lambda text: re.sub(r"\W", lambda c: f"&#x{ord(c[0]):X};", text),
    "HTML, in lower hex": lambda text: re.sub(r"\W", lambda c: f"&#x{ord(c[0]):x};", text),
    "HTML, in longer hex": lambda text: re.sub(r"\W", lambda c: f"&#x{ord(c[0]):04x};", text),
    "HTML, decimal": lambda text: re.sub(r"\W", lambda c: f"&#{ord(c[0])};", text),
    "HTML, throughout": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "HTML, by names": lambda text: (
        html.escape(text).replace("/", "&sol;").replace("+", "&plus;").replace("=", "&equals;")
    ),
    "in lines": lambda text: "\n".join(text[at : at + 10] for at in range(0, len(text), 10)),
    "in lines of a DOS": lambda text: re.sub("(.{7})", "\\1\r\n", text),
    "in lines, in JSON": lambda text: json.dumps(text[:9] + "\n" + text[9:])[1:-1],
    "in lines of a shell": lambda text: text[:9] + "\\\n" + text[9:],
    "in a mail": lambda text: re.sub("^(.{9})", "\\1=\r\n", text.replace("=", "=3D")),
    "percent-encoded twice": lambda text: quote(quote(text, safe=""), safe=""),
    "percent-encoded, in HTML": lambda text: html.escape(quote(text, safe="&")),
    "percent-encoded, in JSON": lambda text: json.dumps(quote(text, safe='"/'))[1:-1],
    "JSON in JSON": lambda text: json.dumps(json.dumps(text))[3:-3],
    "JSON with slashes escaped, in JSON": lambda text: json.dumps(
        json.dumps(text)[1:-1].replace("/", "\\/")
    )[1:-1],
    "JSON as .NET writes it": lambda text: re.sub(r"\W", lambda c: f"\\u{ord(c[0]):04X}", text),
    "C": lambda text: re.sub(r"\W", lambda c: f"\\x{ord(c[0]):02x}", text),
    "JavaScript": lambda text: re.sub(r"\W", lambda c: f"\\u{{{ord(c[0]):x}}}", text),
    "hex in lines": lambda text: re.sub(r"(.{11})", "\\1\n", text.encode().hex()),
    "base64 in odd lines": lambda text: re.sub(
        r"(.{11})", "\\1\n", base64.b64encode(text.encode()).decode()
    ),
    "base64 in HTML": lambda text: (
        base64.b64encode(text.encode()).decode().replace("+", "&#43;").replace("/", "&#x2F;")
    ),
}
"""Further spellings, of a text in ASCII."""

secrets = st.text(
    st.one_of(st.sampled_from(string.ascii_letters + "/+%\\\"' -_"), st.characters(codec="utf-8")),
    min_size=MIN_SECRET,
    max_size=300,
)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def streamed(redactor: Redactor, pieces: list[bytes]) -> bytes:
    stream = redactor.stream()
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.finish()])


@pytest.mark.parametrize("way", WRITTEN)
@pytest.mark.parametrize(
    "secret", [TOKEN, 'pass/word+"with\\specials" éü😀', "\\" * 8, "/" * 9, "?>" * 5, "%41" * 4]
)
def test_a_secret_is_found_however_it_is_written(way: str, secret: str) -> None:
    redactor = Redactor([secret])
    text = f"before {WRITTEN[way](secret)} after"

    assert redactor.text(text).startswith("before [secret]")
    assert redactor.text(text).rstrip("=").endswith(" after")


PASSWORDS = (
    *(TOKEN, 'aB3/xY+z9="k&w<q>', "wJalrXUtnFEMI/K7MDENG+bPxRfiCY"),
    "x" * 20 + "/+=" * 60 + "y" * 20,
)


@pytest.mark.parametrize("way", TRIED)
@pytest.mark.parametrize("secret", PASSWORDS)
@pytest.mark.parametrize("size", [10_000, 5, 1])
def test_further_spellings_are_found_in_texts_and_streams(way: str, secret: str, size: int) -> None:
    written = TRIED[way](secret)
    data = f"before {written} after".encode()
    redactor = Redactor([secret])

    shown = streamed(redactor, [data[at : at + size] for at in range(0, len(data), size)])

    assert redactor.text(data.decode()).startswith("before [secret]")
    hidden = shown.removeprefix(b"before ").removesuffix(b" after")
    assert len(shown) == len(data)
    # Between two pieces of a long one, a line break or "=" may stay; so may the end of base64.
    assert len(hidden) - hidden.count(b"*") <= (12 if len(secret) > PIECE else 5)


@pytest.mark.parametrize("user", ["u", "us", "use", "user", "x-access-token"])
def test_a_basic_header_shows_neither_the_secret_nor_a_digit_of_it(user: str) -> None:
    header = "Basic " + base64.b64encode(f"{user}:{TOKEN}".encode()).decode()

    shown = Redactor([TOKEN]).text(header)

    known = base64.b64encode(f"{user}:".encode()).decode().rstrip("=")
    assert shown.startswith("Basic " + known[: len(user + ":") * 8 // 6])
    assert shown.rstrip("=").endswith("[secret]")
    assert len(shown.partition("[")[0]) <= len("Basic ") + len(known)


def test_short_values_are_not_looked_for_and_later_ones_are_added() -> None:
    redactor = Redactor(["", "1234567"])
    assert redactor.text(f"1234567 {TOKEN}") == f"1234567 {TOKEN}"

    redactor.add([TOKEN])
    assert redactor.text(f"1234567 {TOKEN}") == "1234567 [secret]"


def test_of_a_secret_that_begins_another_the_longer_one_is_found() -> None:
    short, long = TOKEN, TOKEN + "-and-more"
    assert Redactor([short, long]).text(f"<{long}> <{short}>") == "<[secret]> <[secret]>"
    assert streamed(Redactor([short, long]), [short.encode(), b"-and-more>"]).endswith(b"*>")


def test_it_shows_nobody_what_it_knows() -> None:
    assert TOKEN not in repr(Redactor([TOKEN]))


def test_a_stream_holds_nothing_back_that_cannot_begin_a_secret() -> None:
    stream = Redactor([TOKEN]).stream()

    assert stream.feed(b'data: {"text": "all of it"}\n\n') == b'data: {"text": "all of it"}\n\n'
    assert stream.feed(b"then gh") == b"then "
    assert stream.feed(b"ost\n") == b"ghost\n"
    assert stream.feed(TOKEN.encode() + b" ") == b"*" * len(TOKEN) + b" "
    assert stream.finish() == b""


@given(
    secret=secrets,
    way=st.sampled_from(sorted(WRITTEN)),
    before=st.binary(max_size=40),
    after=st.binary(max_size=40),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
)
def test_no_stream_shows_a_secret_wherever_it_is_cut(
    secret: str, way: str, before: bytes, after: bytes, cuts: list[int]
) -> None:
    written = WRITTEN[way](secret).encode()
    assume(b"*" not in written)
    redactor = Redactor([secret])
    data = before + written + after

    clean = streamed(redactor, chunks(data, cuts))

    assert written not in clean
    assert len(clean) == len(data)
    assert clean == streamed(redactor, [data])  # where it is cut makes no difference


@given(
    secret=secrets,
    before=st.binary(max_size=8),
    after=st.binary(max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
    safe=st.booleans(),
)
def test_no_stream_shows_a_secret_inside_of_longer_base64(
    secret: str, before: bytes, after: bytes, cuts: list[int], safe: bool
) -> None:
    encode = base64.urlsafe_b64encode if safe else base64.b64encode
    data = encode(before + secret.encode() + after)

    clean = streamed(Redactor([secret]), chunks(data, cuts))

    # Every character that holds a bit of the secret is masked, and no other.
    first = len(before) * 8 // 6
    last = ((len(before) + len(secret.encode())) * 8 - 1) // 6
    assert clean == data[:first] + b"*" * (last + 1 - first) + data[last + 1 :]


@given(
    secret=secrets,
    before=st.binary(max_size=100),
    columns=st.sampled_from((60, 64, 76)),
    ending=st.sampled_from((b"\n", b"\r\n", b"\\n", b"\\r\\n")),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_no_stream_shows_a_secret_in_base64_that_is_broken_into_lines(
    secret: str, before: bytes, columns: int, ending: bytes, cuts: list[int]
) -> None:
    digits = base64.b64encode(before + secret.encode() + b"after it")
    lines = [digits[at : at + columns] for at in range(0, len(digits), columns)]
    data = ending.join(lines)

    clean = streamed(Redactor([secret]), chunks(data, cuts))

    # Of every digit that holds bits of the secret and of nothing else, nothing is seen.
    first = -(-len(before) * 8 // 6)
    last = (len(before) + len(secret.encode())) * 8 // 6
    places = [at + at // columns * len(ending) for at in range(first, last)]
    assert len(clean) == len(data)
    assert {clean[at : at + 1] for at in places} == {b"*"}


@pytest.mark.parametrize("secret", [TOKEN, "".join(map(str, range(1000, 1750)))])
def test_what_is_full_of_escapes_is_searched_only_where_a_secret_can_be(secret: str) -> None:
    redactor = Redactor([secret])
    for noise in (b"%41%31", b"\\u0031\\u0041", b"%31\n"):
        assert list(redactor._near(_Undone(noise * 10_000))) == []
    hidden = "".join(f"%{byte:02x}" for byte in secret.encode()).encode()
    assert streamed(redactor, [b"%41%31" * 100 + hidden]) == b"%41%31" * 100 + b"*" * len(hidden)


@given(secret=secrets, way=st.sampled_from(sorted(WRITTEN)), before=st.text(), after=st.text())
def test_no_text_shows_a_secret(secret: str, way: str, before: str, after: str) -> None:
    written = WRITTEN[way](secret)
    assume("[secret]" not in written)
    assert written not in Redactor([secret]).text(before + written + after)


@given(texts=st.lists(secrets, max_size=4), noise=st.binary(max_size=400))
def test_what_holds_no_secret_is_left_alone(texts: list[str], noise: bytes) -> None:
    shown = streamed(Redactor(texts), chunks(noise, [7, 100]))
    assume(not any(text.encode() in noise for text in texts))
    assert shown == noise
