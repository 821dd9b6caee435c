"""What the real CLI said, as recorded by record.py, and what its turns come to."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.domain.result import Reason
from orchestrator.runners.claude.output import Parser
from orchestrator.runners.signs import Sign, ToolCalled, ToolReturned, TurnEnded

RECORDED = Path(__file__).parent / "recorded"
RECORDINGS = sorted(RECORDED.rglob("*.jsonl"))
OLD, NEW = "2.1.197", "2.1.325"
BOTH = (OLD, NEW)
SESSION = "00000000-0000-4000-8000-000000000000"
CALL_USD = 0.0006
"""What the CLI thinks one scripted answer costs."""


def parse(data: bytes) -> list[Sign]:
    parser = Parser()
    return parser.feed(data) + parser.finish()


def recorded(version: str, case: str) -> list[Sign]:
    """The signs of a recording, with costs that binary fractions have not blurred."""
    signs = parse((RECORDED / version / f"{case}.jsonl").read_bytes())
    return [
        sign.model_copy(update={"cost_usd": round(sign.cost_usd, 7)})
        if isinstance(sign, TurnEnded)
        else sign
        for sign in signs
    ]


def returned(version: str, case: str) -> list[tuple[str, bool]]:
    signs = recorded(version, case)
    return [(sign.text, sign.is_error) for sign in signs if isinstance(sign, ToolReturned)]


def line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def ended(
    reason: Reason,
    text: str,
    *,
    turns: int = 1,
    usd: float = 0.0,
    denied: str = "",
    call: int | str = 1,
) -> TurnEnded:
    denial = ToolCalled(id=f"toolu_{call}", tool="Bash", input={"command": denied})
    return TurnEnded(
        reason=reason,
        text=text,
        session_id=SESSION,
        num_turns=turns,
        cost_usd=round(usd, 7),
        denials=(denial,) if denied else (),
        interrupted=reason == "cancelled",
    )


def done(calls: int = 1, text: str = "All done.", denied: str = "") -> TurnEnded:
    return ended("ok", text, turns=calls, usd=calls * CALL_USD, denied=denied)
