"""Text or bytes that may hold a secret -> the same without it."""

from __future__ import annotations

import base64
import html
import itertools
import json
import random
import re
import string
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orchestrator.redaction import (
    LOOSE,
    MIN_SECRET,
    PIECE,
    Redactor,
    _undo,
    _Undone,
)

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


PIECES = [(secret, size) for secret in PASSWORDS[:3] for size in (10_000, 5, 1)]
PIECES += [(PASSWORDS[3], 10_000), (PASSWORDS[3], 7)]  # byte by byte, a long one takes long


@pytest.mark.parametrize("way", TRIED)
@pytest.mark.parametrize(("secret", "size"), PIECES)
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


def test_the_shortest_secret_is_found_though_each_of_its_characters_is_escaped_otherwise() -> None:
    secret, written = "p/ss+w-d", "p%2Fs\\x73\\u002bw&#45;d"
    assert len(secret) == MIN_SECRET
    assert Redactor([secret]).text(f"before {written} after") == "before [secret] after"


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


TWICE = {
    "HTML about HTML": "<p>Write &lt;b&gt; as <code>&amp;lt;b&amp;gt;</code>.</p>" * 12,
    "a percent sign by its number": "%41 " + "&#x25;41" * 60,
}
"""Texts in which what an escape stands for looks like the beginning of another."""

HIDDEN: dict[str, Callable[[str], str]] = {
    "percent": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "JSON": lambda text: "".join(f"\\u{byte:04x}" for byte in text.encode()),
    "base64 in lines": lambda text: re.sub(
        r"(.{4})", "\\1\n", base64.b64encode(text.encode()).decode()
    ),
    "one letter": lambda text: f"{text[:5]}&#x{ord(text[5]):x};{text[6:]}",
}


@pytest.mark.parametrize("before", TWICE)
@pytest.mark.parametrize("way", HIDDEN)
def test_what_was_undone_is_not_undone_again(before: str, way: str) -> None:
    secret = "s3cr3tTOKENvalue98"
    start, end = TWICE[before] + '<a href="/login?token=', '">'

    shown = Redactor([secret]).text(start + HIDDEN[way](secret) + end)

    assert shown.startswith(start + "[secret]")
    assert len(shown) <= len(start + "[secret]" + end) + 2  # base64 ends with a line break


@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from(
                [
                    *("%", "25", "41", "&", "#", "x", "amp", "lt", "nope", ";", "=", "3D", "\\"),
                    *("u", "00", "{", "}", "r", "n", "\r", "\n", "é"),
                ]
            ),
            st.sampled_from(["&amp;", "&#x25;", "%25", "&#61;", "\\u005c", "%0a", "&#38;"]),
        ),
        max_size=40,
    )
)
def test_all_escapes_are_undone_in_one_pass(parts: list[str]) -> None:
    data = "".join(parts).encode()
    undone = _Undone(data)

    assert undone.text == LOOSE.sub(_undo, data)
    places = [undone.start(at) for at in range(len(undone.text))]
    assert places == sorted(places)


SPELT: tuple[Callable[[int], str], ...] = (
    *(chr, chr, chr),
    *(lambda byte: f"%{byte:02x}", lambda byte: f"%25{byte:02X}", lambda byte: f"%2525{byte:02x}"),
    *(
        lambda byte: f"\\u{byte:04x}",
        lambda byte: f"\\\\u{byte:04X}",
        lambda byte: f"\\x{byte:02x}",
    ),
    *(lambda byte: f"\\u{{{byte:x}}}", lambda byte: f"\\u{{000{byte:x}}}"),
    *(lambda byte: f"&#x{byte:x};", lambda byte: f"&#X0000{byte:X};", lambda byte: f"&#{byte};"),
    *(lambda byte: f"&#00{byte};", lambda byte: f"{chr(byte)}\n", lambda byte: f"={chr(byte)}"),
    *(
        lambda byte: f"{chr(byte)}=\r\n",
        lambda byte: f"\\{chr(byte)}",
        lambda byte: f"&{chr(byte)}",
    ),
    *(lambda byte: f"{chr(byte)}\\r\\n", lambda byte: f"{chr(byte)}\\\\n"),
)
"""How a character may be written, and what may stand beside it."""


def hidden_in_streams(redactor: Redactor, data: bytes, pieces: list[bytes]) -> bool:
    """Whether all that is masked of the data in one piece is masked of the pieces."""
    whole, rest, _ = redactor.masked(data, b"*", last=True)
    shown = streamed(redactor, pieces)
    assert (len(shown), rest) == (len(whole), b"")
    return all(
        there == ord("*") for there, as_one in zip(shown, whole, strict=True) if as_one == 42
    )


def test_a_stream_may_be_cut_after_an_escape_and_what_looks_like_more_of_it() -> None:
    redactor = Redactor(["s3cr3t-TOKEN+value98"])
    pieces = [b"token=%25733", b"&#x63;r3t-TOKEN+value98 end"]

    assert streamed(redactor, pieces) == b"token=" + b"*" * 29 + b" end"


OVERLAPPING = ("abcdefgh-IJKLmnop", "IJKLmnop-qrstuvwx", "qrstuvwx+yz")


@pytest.mark.parametrize("way", [*WRITTEN, *TRIED])
def test_secrets_that_overlap_are_masked_wherever_a_stream_is_cut(way: str) -> None:
    redactor = Redactor(OVERLAPPING)
    data = (WRITTEN | TRIED)[way]("<abcdefgh-IJKLmnop-qrstuvwx+yz>").encode()

    for cut in range(len(data)):
        assert hidden_in_streams(redactor, data, [data[:cut], data[cut:]]), cut
        # What is cut there is shown in two parts, each of which is cleaned.
        sure = redactor.sure(data[:cut])
        parts = [redactor.text(part.decode()) for part in (data[:sure], data[sure:])]
        assert not any(secret[-8:] in "".join(parts) for secret in OVERLAPPING), (cut, parts)
    assert hidden_in_streams(redactor, data, [data[at : at + 1] for at in range(len(data))])


def test_a_hidden_secret_is_found_beside_one_whose_beginning_an_escape_takes() -> None:
    secret = "41-s3cr3t-TOKEN"
    hidden = "4&#x31;-s3cr3t-TOKEN"

    assert Redactor([secret]).text(f"%{secret} {hidden}.") == "%[secret] [secret]."


@pytest.mark.parametrize(
    "secret",
    [
        *("s3cr3t-TOKEN+value98", "abcdef0123456789", "25253d3d41xu00nr", "r3n3u00x{7d}-rn-u"),
        *("%61" * 9, "=3DAB\\u0041cdef%25ab", "amp&lt;sol;quot&#"),
    ],
)
def test_a_stream_masks_mixed_spellings_wherever_it_is_cut(secret: str) -> None:
    chance = random.Random(secret)
    redactor = Redactor([secret])
    masked = 0
    for _ in range(200):
        ways = chance.sample(SPELT, chance.randint(1, 5))
        meant = chance.choice((secret.encode(), LOOSE.sub(_undo, secret.encode())))
        written = "".join(chance.choice(ways)(byte) for byte in meant)
        before = chance.choice(("", "token=", "%", "&", "\\", "%25", "&a", "=3", "\\r", "100%41"))
        data = (before + written + chance.choice((" end", "", "\n", "%41"))).encode()
        cuts = [chance.randrange(len(data)) for _ in range(chance.randint(1, 6))]
        every = [data[at : at + 1] for at in range(len(data))]

        assert hidden_in_streams(redactor, data, chunks(data, cuts)), (data, sorted(cuts))
        if chance.random() < 0.1:
            assert hidden_in_streams(redactor, data, every), data
        masked += redactor.text(data.decode()) != data.decode()
    assert masked > 5  # or else nothing was tried
