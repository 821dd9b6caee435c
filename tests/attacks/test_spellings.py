"""Attacks by spelling: a secret comes back as a template, a terminal or a mail writes it."""

from __future__ import annotations

import pytest

from orchestrator.redaction import Redactor
from tests.attacks.mark import attack
from tests.test_redaction import TRIED, streamed

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCY="


@attack(
    "secret hunting",
    "have a token come back in HTML entities, in lines, escaped twice or in a mixture of these",
    "it is found and masked, in records and in what a host answers, however the answer is cut",
)
@pytest.mark.parametrize("way", sorted(TRIED))
def test_a_secret_is_masked_however_it_comes_back(way: str) -> None:
    written = TRIED[way](SECRET)
    redactor = Redactor([SECRET])

    recorded = redactor.text(f"<p>no such token: {written}</p>")
    pieces = [f"<p>no such token: {written}</p>".encode()[at:][:3] for at in range(0, 2000, 3)]
    answered = streamed(redactor, pieces).decode()

    for shown in (recorded, answered):
        left = shown.removeprefix("<p>no such token: ").removesuffix("</p>")
        assert len(left.replace("[secret]", "").replace("*", "")) <= 8, left
