"""What the real CLI said, as recorded by record.py, and what its turns come to."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.domain.agent import AgentSpec, Permissions
from orchestrator.domain.result import Reason
from orchestrator.runners.claude.output import Parsed, Parser
from orchestrator.runners.signs import ToolCalled, ToolReturned, TurnEnded

RECORDED = Path(__file__).parent / "recorded"
RECORDINGS = sorted(RECORDED.rglob("*.jsonl"))
OLD, NEW = "2.1.197", "2.1.325"
BOTH = (OLD, NEW)
SESSION = "00000000-0000-4000-8000-000000000000"


def asking_agent(allow: tuple[str, ...], ask: tuple[str, ...]) -> AgentSpec:
    return AgentSpec(
        name="asking",
        description="Asks.",
        permissions=Permissions(allow=allow),
        approval=dict.fromkeys(ask, "ask"),
    )


def parse(data: bytes) -> list[Parsed]:
    parser = Parser()
    return parser.feed(data) + parser.finish()


def recorded(version: str, case: str) -> list[Parsed]:
    """The signs of a recording."""
    return parse((RECORDED / version / f"{case}.jsonl").read_bytes())


def names(signs: list[Parsed]) -> list[str]:
    """What kinds of signs these are."""
    return [type(sign).__name__ for sign in signs]


def returned(version: str, case: str) -> list[tuple[str, bool]]:
    signs = recorded(version, case)
    return [(sign.text, sign.is_error) for sign in signs if isinstance(sign, ToolReturned)]


def line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def ended(reason: Reason, text: str, *, denied: str = "", call: int | str = 1) -> TurnEnded:
    denial = ToolCalled(id=f"toolu_{call}", tool="Bash", input={"command": denied})
    return TurnEnded(
        reason=reason,
        text=text,
        denials=(denial,) if denied else (),
        interrupted=reason == "cancelled",
    )


def done(text: str = "All done.", denied: str = "") -> TurnEnded:
    return ended("ok", text, denied=denied)
