"""The error tree is what its drawing says, and its codes stay."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator import errors
from orchestrator.errors import OrchestratorError

CODES = {
    "OrchestratorError": ("error", 1),
    "AuthorError": ("author_error", 3),
    "AgentInvalid": ("agent_invalid", 3),
    "ServerInvalid": ("server_invalid", 3),
    "VariableMissing": ("variable_missing", 3),
    "SpecRefused": ("spec_refused", 3),
    "MemoryTooSmall": ("memory_too_small", 3),
    "SpawnFailed": ("spawn_failed", 3),
    "OperatorError": ("operator_error", 4),
    "AgentsDirMissing": ("agents_dir_missing", 4),
    "NotTrusted": ("not_trusted", 4),
    "ServerNotPinned": ("server_not_pinned", 4),
    "ServerFailed": ("server_failed", 4),
    "EngineUnreachable": ("engine_unreachable", 6),
    "EngineRefused": ("engine_refused", 4),
    "EngineConflict": ("engine_refused", 4),
    "ImageMissing": ("image_missing", 4),
    "ImageBuildFailed": ("image_build_failed", 4),
    "BaseMissing": ("base_missing", 7),
    "ServerAway": ("server_away", 4),
    "NotReady": ("not_ready", 4),
    "StoreFailed": ("store_failed", 4),
    "StoreTooNew": ("store_too_new", 4),
    "CopyFailed": ("copy_failed", 4),
    "WireLost": ("wire_lost", 4),
    "CallerError": ("caller_error", 5),
    "CallInvalid": ("caller_error", 5),
    "AgentNotFound": ("agent_not_found", 5),
    "ServerNotFound": ("server_not_found", 5),
    "CallerRefused": ("caller_refused", 5),
    "CallerMissing": ("caller_missing", 5),
    "GatewayRefused": ("caller_error", 5),
    "DeniedByPolicy": ("DENIED_BY_POLICY", 5),
    "AgentIdInvalid": ("INVALID_AGENT_ID", 5),
    "FallbackNotInRules": ("FALLBACK_AGENT_NOT_IN_RULES", 5),
    "NoFallback": ("NO_FALLBACK_CONFIGURED", 5),
    "ServerUnavailable": ("SERVER_UNAVAILABLE", 5),
    "ToolNotFound": ("TOOL_NOT_FOUND", 5),
    "ToolChanged": ("TOOL_CHANGED", 5),
    "ToolArgumentsInvalid": ("ARGUMENTS_INVALID", 5),
    "ToolTimeout": ("TIMEOUT", 5),
    "RunNotFound": ("run_not_found", 5),
    "WorkspaceNotFound": ("workspace_not_found", 5),
    "RunRefused": ("run_refused", 5),
    "ThreadRefused": ("session_already_running", 5),
    "SessionRefused": ("session_refused", 5),
    "MountRefused": ("mount_refused", 5),
    "CopyRefused": ("copy_refused", 5),
    "ApplyRefused": ("apply_refused", 5),
    "NameTaken": ("name_taken", 5),
    "AskedBefore": ("idempotency_key_in_use", 5),
    "KeyReused": ("idempotency_key_reused", 5),
}
"""For programs, which rely on them: add to this, and change nothing in it."""


def tree(error: type[OrchestratorError], depth: int = 0) -> Iterator[tuple[int, str]]:
    yield depth, error.__name__
    for below in error.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from tree(below, depth + 1)


def test_the_drawing_names_every_class_below_its_own() -> None:
    drawn = [
        (len(found[1]) // 4, found[2])
        for line in (errors.__doc__ or "").splitlines()
        if (found := re.match(r"((?:[│├└─ ]{4})*)([A-Z][A-Za-z]+)(?: {2}|$)", line))
    ]
    assert drawn == list(tree(OrchestratorError))


def test_a_code_and_an_exit_code_do_not_change() -> None:
    classes = [getattr(errors, name) for _, name in tree(OrchestratorError)]
    assert {each.__name__: (each.code, each.exit_code) for each in classes} == CODES
