"""The error tree: three branches, because three people act on them.

OrchestratorError
├── AuthorError            the agent's author acts: on agent.md, the image or the limits
│   ├── AgentInvalid       an agent.md that says something we do not understand
│   ├── ServerInvalid      a server.yaml or a tools.lock.json that we do not understand
│   ├── VariableMissing    it names a variable that is not set
│   ├── SpecRefused        a container that we will not make
│   ├── MemoryTooSmall     it dies before it can say hello
│   └── SpawnFailed        the program could not be started inside the container
├── OperatorError          the operator acts: on the orchestrator, its engine or its disk
│   ├── AgentsDirMissing   there is no directory with agents where one should be
│   ├── NotTrusted         an agent wants what nobody has trusted its project with
│   ├── ServerNotPinned    no person has read what the tools of a server are
│   ├── ServerFailed       a server of tools cannot be started, or does not answer as one
│   ├── EngineUnreachable  no container engine answers
│   ├── EngineRefused      the engine answered, and it was a no
│   │   └── EngineConflict  because of something else that it is doing; later it may be a yes
│   ├── ImageMissing       the image is not on the engine
│   ├── ImageBuildFailed   the image could not be made
│   │   └── BaseMissing     there is nothing to build it on, and nothing to make that with
│   ├── ServerAway         the orchestrator elsewhere does not answer
│   ├── NotReady           the orchestrator elsewhere is still at it; the same again tells
│   ├── StoreFailed        what happened cannot be kept
│   │   └── StoreTooNew     a newer orchestrator has written it
│   ├── CopyFailed         a workspace could not be copied into a container, or out of it
│   └── WireLost           a container went away, or did not keep to the protocol
└── CallerError            the caller acts: on what it asked for
    ├── CallInvalid        a call that means nothing, or two things; another one is needed
    ├── AgentNotFound      there is no agent of that name
    ├── ServerNotFound     there is no server of tools of that name
    ├── CallerRefused      the agent does not allow this caller
    ├── CallerMissing      the call names no caller, and the operator wants one
    ├── GatewayRefused     a call of an agent outside; these have the codes of their protocol
    │   ├── DeniedByPolicy      the rules do not let this agent do that
    │   ├── AgentIdInvalid      it says to be an agent that it may not be, or that is unknown
    │   ├── FallbackNotInRules  the operator's default agent is unknown
    │   ├── NoFallback          it does not say which agent it is, and nothing else does
    │   ├── ServerUnavailable   there is no such server, or it does not answer
    │   ├── ToolNotFound        the server has no such tool
    │   ├── ToolChanged         the server's tool is not the one that was pinned
    │   ├── ToolArgumentsInvalid  they do not fit the tool's schema
    │   └── ToolTimeout         the tool has not answered in time
    ├── RunNotFound        there is no run of that id
    ├── WorkspaceNotFound  nobody has sent a workspace of that id, or it is gone again
    ├── RunRefused         what was asked of a run does not fit what it is doing
    ├── ThreadRefused      what was asked of a line of runs does not fit the run that it is at
    ├── SessionRefused     a session of an agent that has none, or one that is not there
    ├── MountRefused       a directory that no container may see
    ├── CopyRefused        a directory that cannot be copied: too large, or not there
    ├── ApplyRefused       changes that do not fit the directory any more
    ├── NameTaken          another run is using the container of that session
    ├── AskedBefore        the same request was made under its key, and has its run
    └── KeyReused          another request was made under the same key

A message says what happened, to what, and what to do next; it never carries a secret.
"""

from __future__ import annotations

from typing import ClassVar


class OrchestratorError(Exception):
    """Anything that goes wrong in a way we foresaw."""

    code: ClassVar[str] = "error"
    """For programs. It does not change between releases."""

    exit_code: ClassVar[int] = 1
    """What the command line exits with."""

    retry_seconds: float = 0.0
    """After which to ask again, as a server elsewhere says that refuses."""


class AuthorError(OrchestratorError):
    code = "author_error"
    exit_code = 3


class OperatorError(OrchestratorError):
    code = "operator_error"
    exit_code = 4


class CallerError(OrchestratorError):
    code = "caller_error"
    exit_code = 5


class AgentInvalid(AuthorError):
    code = "agent_invalid"


class ServerInvalid(AuthorError):
    code = "server_invalid"


class VariableMissing(AuthorError):
    code = "variable_missing"


class SpecRefused(AuthorError):
    code = "spec_refused"


class MemoryTooSmall(AuthorError):
    code = "memory_too_small"


class SpawnFailed(AuthorError):
    code = "spawn_failed"

    def __init__(self, message: str, *, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class AgentsDirMissing(OperatorError):
    code = "agents_dir_missing"


class NotTrusted(OperatorError):
    code = "not_trusted"


class ServerNotPinned(OperatorError):
    code = "server_not_pinned"


class ServerFailed(OperatorError):
    code = "server_failed"


class EngineUnreachable(OperatorError):
    code = "engine_unreachable"
    exit_code = 6


class EngineRefused(OperatorError):
    code = "engine_refused"


class EngineConflict(EngineRefused):
    pass


class ImageMissing(OperatorError):
    code = "image_missing"


class ImageBuildFailed(OperatorError):
    code = "image_build_failed"


class BaseMissing(ImageBuildFailed):
    code = "base_missing"
    exit_code = 7


class ServerAway(OperatorError):
    code = "server_away"

    def __init__(self, message: str, *, unsent: bool = False) -> None:
        super().__init__(message)
        self.unsent = unsent
        """Nothing has been asked yet: to ask again cannot do it twice."""


class NotReady(OperatorError):
    code = "not_ready"


class StoreFailed(OperatorError):
    code = "store_failed"


class StoreTooNew(StoreFailed):
    code = "store_too_new"


class CopyFailed(OperatorError):
    code = "copy_failed"


class WireLost(OperatorError):
    code = "wire_lost"


class CallInvalid(CallerError):
    """Its code is the branch's: programs know these errors by it."""


class AgentNotFound(CallerError):
    code = "agent_not_found"


class ServerNotFound(CallerError):
    code = "server_not_found"


class CallerRefused(CallerError):
    code = "caller_refused"


class CallerMissing(CallerError):
    code = "caller_missing"


class GatewayRefused(CallerError):
    """Its codes are those of agent-mcp-gateway, which programs know."""

    def __init__(self, message: str, *, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


class DeniedByPolicy(GatewayRefused):
    code = "DENIED_BY_POLICY"


class AgentIdInvalid(GatewayRefused):
    code = "INVALID_AGENT_ID"


class FallbackNotInRules(GatewayRefused):
    code = "FALLBACK_AGENT_NOT_IN_RULES"


class NoFallback(GatewayRefused):
    code = "NO_FALLBACK_CONFIGURED"


class ServerUnavailable(GatewayRefused):
    code = "SERVER_UNAVAILABLE"


class ToolNotFound(GatewayRefused):
    code = "TOOL_NOT_FOUND"


class ToolChanged(GatewayRefused):
    code = "TOOL_CHANGED"


class ToolArgumentsInvalid(GatewayRefused):
    code = "ARGUMENTS_INVALID"


class ToolTimeout(GatewayRefused):
    code = "TIMEOUT"


class RunNotFound(CallerError):
    code = "run_not_found"


class WorkspaceNotFound(CallerError):
    code = "workspace_not_found"


class RunRefused(CallerError):
    code = "run_refused"


class ThreadRefused(CallerError):
    code = "session_already_running"


class SessionRefused(CallerError):
    code = "session_refused"


class MountRefused(CallerError):
    code = "mount_refused"


class CopyRefused(CallerError):
    code = "copy_refused"


class ApplyRefused(CallerError):
    code = "apply_refused"


class NameTaken(CallerError):
    code = "name_taken"


class AskedBefore(CallerError):
    code = "idempotency_key_in_use"

    def __init__(self, message: str, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class KeyReused(CallerError):
    code = "idempotency_key_reused"
