"""The fields of others' agent files -> those of agent.md, and a note for each that differs. Pure.

A file of others opens nothing: no field of it leads to a network, a secret, a variable, an image, a
workspace that is written to, another caller or a session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from orchestrator.catalog.foreign.draft import Draft, listed
from orchestrator.catalog.foreign.front_matter import plain_key
from orchestrator.catalog.foreign.names import agent_name
from orchestrator.catalog.foreign.tool_fields import read_disallowed, read_permissions, read_tools
from orchestrator.catalog.foreign.tools import split_names
from orchestrator.catalog.problems import did_you_mean, found
from orchestrator.domain.agent import AgentSpec
from orchestrator.plain_yaml import shortened

MOST_TURNS = 1000
LONGEST_MS = 24 * 3600 * 1000

MODEL_FAMILIES = ("sonnet", "opus", "haiku", "fable")

DECORATION = (
    *("color", "category", "emoji", "vibe", "author", "version", "tags", "title", "icon"),
    *("license", "metadata", "target", "argument-hint", "user-invocable", "user-invokable"),
    *("disable-model-invocation", "infer", "mode", "hidden", "kind", "display-name"),
    *("nickname_candidates", "keywords", "priority", "url", "homepage", "created", "updated"),
)
"""Fields that are for the window of another program, or for readers."""


FieldReader = Callable[[Draft, str, object], None]
"""Reads one field: what it is called in the file, and its value. It notes all that differs."""


def read_foreign_fields(draft: Draft, fields: Mapping[str, object]) -> None:
    """Everything that the fields say, into the draft."""
    passed_over = []
    for field, value in fields.items():
        key = plain_key(field)
        reader = READERS.get(key)
        if key in _WHO:
            continue
        if key in _PASSED_OVER:
            passed_over.append(field)
        elif reader is not None:
            if value is not None or reader is read_tools:
                reader(draft, field, value)
        elif key in _OURS_ALONE:
            draft.note(
                "passed over",
                field,
                "counts only in an agent.md, which `orchestrator import` writes of this file; "
                "passed over",
            )
        elif guess := did_you_mean(field, _USUAL):
            message = f"is no field that is known; did you mean '{guess}'?"
            draft.note("passed over", field, message)
        else:
            passed_over.append(field)
    if passed_over:
        message = f"has fields that mean nothing here: {listed(passed_over)}"
        draft.note("passed over", "", message)
    _name(draft, fields)
    _description(draft, fields)
    read_permissions(draft)


def honoured(draft: Draft, fields: Mapping[str, object]) -> tuple[str, ...]:
    """The fields that mean here what they mean there: no note is about them."""
    noted = {note.field for note in draft.notes}
    kept = [field for field in fields if plain_key(field) in READERS.keys() | _WHO]
    return tuple(field for field in kept if field not in noted)


def _name(draft: Draft, fields: Mapping[str, object]) -> None:
    by_file = draft.dialect.name in ("copilot", "persona")
    written = _text_of(fields.get("name"))
    name = agent_name(draft.file_stem if by_file or not written else written, draft.file_stem)
    draft.fields["name"] = name
    if written and name == written:
        return
    if written and by_file:
        draft.changed("name", f"'{shortened(written)}' is only shown; it is called {name} here")
    elif written:
        draft.changed("name", f"'{shortened(written)}' is no name here; it is called {name}")
    elif draft.dialect.name == "claude":
        draft.changed(
            "name", f"is missing, so Claude Code does not load it; it is called {name}, by its file"
        )
    elif name != draft.file_stem:
        draft.changed("", f"it is called {name} here, since its file's name is no name")


def _description(draft: Draft, fields: Mapping[str, object]) -> None:
    given = fields.get("description")
    text = _text_of(given)
    if text:
        draft.fields["description"] = text
    elif given is not None and not isinstance(given, str):
        draft.problems.add(("description",), f"must be text, found {found(given)}")
    elif draft.dialect.name == "openhands":
        draft.fields["description"] = f"The agent {draft.fields['name']}."
        draft.changed("description", "is missing; a caller is told no more than the agent's name")
    else:
        draft.problems.add(
            ("description",), "is missing; write `description: …`, for what it is to be used"
        )


def _model(draft: Draft, field: str, value: object) -> None:
    given = value[0] if isinstance(value, list) and value else value
    text = _word(given)
    plain = text.lower()
    if not text:
        draft.left_out(field, f"found {found(value)}; the default model is used")
    elif plain in ("inherit", "default", "auto"):
        pass
    elif plain in MODEL_FAMILIES or re.fullmatch(r"claude-[a-z0-9@-]+(\[1m\])?", text):
        draft.fields["model"] = plain if plain in MODEL_FAMILIES else text
        if isinstance(value, list) and len(value) > 1:
            draft.changed(field, f"names several; {text} is used")
    elif family := next((each for each in MODEL_FAMILIES if each in plain), None):
        draft.fields["model"] = family
        draft.changed(field, f"'{shortened(text)}' is {family} here")
    elif draft.dialect.name == "persona" and re.fullmatch(r"[\w.:/@-]+", text):
        draft.fields["model"] = text  # it chooses the agent CLI, there as here
    elif draft.dialect.name == "claude" and re.fullmatch(r"[\w.:/@\[\]-]+", text):
        draft.fields["model"] = text
        draft.changed(
            field,
            f"'{shortened(text)}' is no model of Claude's that is known; it is asked for as it is, "
            "as Claude Code does",
        )
    else:
        draft.left_out(
            field, f"'{shortened(text)}' is no model of Claude's; the default model is used"
        )


def _permission_mode(draft: Draft, field: str, value: object) -> None:
    mode = _word(value)
    if mode == "plan":
        draft.read_only = True
    elif mode == "always_confirm":
        draft.fields["approval"] = {"*": "ask"}
    elif mode in ("acceptEdits", "auto", "bypassPermissions", "dontAsk", "never_confirm"):
        pass  # nothing is asked, inside the container
    elif mode in ("default", "manual", "confirm_risky"):
        draft.left_out(
            field,
            f"{mode} asks before it acts; here nothing is asked, and the container and the copy "
            "stand in its place",
            'approval: {"*": ask}',
        )
    else:
        draft.left_out(field, f"found {found(value)}, which is no mode; nothing is asked here")


def _max_turns(draft: Draft, field: str, value: object) -> None:
    number = _number(value)
    if number is None or number < 1 or number != int(number):
        draft.left_out(field, f"found {found(value)}; it must be a whole number from 1 on")
        return
    draft.fields["max_turns"] = min(int(number), MOST_TURNS)
    if number > MOST_TURNS:
        draft.changed(field, f"{int(number)} is more than there can be here; it is {MOST_TURNS}")


def _max_budget(draft: Draft, field: str, value: object) -> None:
    number = _number(value)
    if number is None or number <= 0:
        draft.left_out(field, f"found {found(value)}; it must be more than 0, in dollars")
        return
    draft.fields["max_budget_usd"] = number


def _timeout_minutes(draft: Draft, field: str, value: object) -> None:
    number = _number(value)
    if number is None or number * 60_000 < 1000:
        draft.left_out(field, f"found {found(value)}; it must be a number of minutes")
        return
    draft.fields["timeout_ms"] = min(int(number * 60_000), LONGEST_MS)


def _read_only(draft: Draft, field: str, value: object) -> None:
    if value is True:
        draft.read_only = True
    elif value is not False:
        draft.left_out(field, f"must be true or false, found {found(value)}")


def _isolation(draft: Draft, field: str, value: object) -> None:
    if value == "worktree":
        draft.fields.setdefault("workspace", {"mode": "copy"})
    else:
        draft.left_out(
            field,
            f"found {found(value)}; every agent has a container of its own here, on this machine",
        )


def _omit_claude_md(draft: Draft, field: str, value: object) -> None:
    if value is not True:
        draft.left_out(field, "no CLAUDE.md is read here, whatever it says")


def _background(draft: Draft, field: str, value: object) -> None:
    if value is not False:
        draft.left_out(
            field,
            "callers decide here: a run goes on in the background if its caller does not "
            "wait for it",
        )


def _servers(draft: Draft, field: str, value: object) -> None:
    names: list[str] = []
    for item in value if isinstance(value, list) else [value]:
        names += (
            [item] if isinstance(item, str) else map(str, item) if isinstance(item, dict) else []
        )
    if not names:
        draft.left_out(field, f"found {found(value)}; nothing is started")
        return
    draft.left_out(
        field,
        f"not started: {listed(names)} (MCP servers are started by an agent.md only)",
        f"mcp_servers: [{{name: {agent_name(names[0], 'server')}, command: PROGRAM}}]",
    )


def _skills(draft: Draft, field: str, value: object) -> None:
    names = [*split_names(value)] if isinstance(value, str) else value
    which = f": {listed(map(str, names))}" if isinstance(names, list) and names else ""
    draft.left_out(field, f"not loaded{which} (write what the agent needs into its prompt)")


def _memory(draft: Draft, field: str, value: object) -> None:
    if value in ("none", False):
        return
    draft.left_out(
        field,
        f"{found(value)} keeps notes for later calls in {draft.dialect.program}; here only agents "
        "with sessions have a memory",
        "session: true\nmemory: rw",
    )


def _means(message: str, instead: str = "") -> FieldReader:
    """A field that has no effect here, whatever its value."""

    def told(draft: Draft, field: str, value: object) -> None:  # noqa: ARG001
        draft.left_out(field, message, instead)

    return told


_WATCHED = _means("no other agent watches a run here; `orchestrator logs RUN -f` shows it")
_SET_BY_CLI = _means("is not set here; the agent's CLI decides")

READERS: dict[str, FieldReader] = {
    plain_key(name): reader
    for names, reader in (
        (("tools", "allowed-tools"), read_tools),
        (("disallowedTools",), read_disallowed),
        (("model",), _model),
        (("permissionMode",), _permission_mode),
        (("maxTurns", "max_iteration_per_run", "steps", "maxSteps"), _max_turns),
        (("max_budget_per_run",), _max_budget),
        (("timeout_mins",), _timeout_minutes),
        (("readonly",), _read_only),
        (("isolation",), _isolation),
        (("omitClaudeMd",), _omit_claude_md),
        (("background", "is_background"), _background),
        (("mcpServers", "mcp_config"), _servers),
        (("skills",), _skills),
        (("memory",), _memory),
        (("effort",), _means("is not set here; the model works as hard as it does by itself")),
        (
            ("hooks",),
            _means("are never run: they are commands for your machine, and no agent starts any"),
        ),
        (
            ("initialPrompt",),
            _means("is not sent; the first message here is the task that the caller gives"),
        ),
        (("observer", "observerMessage", "observeSubagents"), _WATCHED),
        (("autoCompactWindow", "condenser", "temperature", "top_p", "variant"), _SET_BY_CLI),
        (("profile_store_dir",), _means("is not read; models are named in `model`")),
        (
            ("agents", "handoffs"),
            _means(
                "left out (for running other agents, which this file cannot allow)",
                "subagents: [NAME]  # which list this agent in their allowed_callers",
            ),
        ),
        (
            ("permission",),
            _means(
                "is not read; which tools an agent may use is said in `tools`",
                "permissions: {allow: [Read], deny: [Write]}",
            ),
        ),
    )
    for name in names
}
"""Fields that count, or that it takes a sentence to say why not."""

_WHO = frozenset(("name", "description", "persona"))
_PASSED_OVER = frozenset(map(plain_key, DECORATION))
_OURS_ALONE = frozenset(map(plain_key, AgentSpec.model_fields)) - _WHO - frozenset(READERS)

_USUAL = (
    *("name", "description", "tools", "disallowedTools", "model", "permissionMode", "maxTurns"),
    *("isolation", "background", "mcpServers", "skills", "memory", "effort", "hooks", "readonly"),
    *("initialPrompt", "omitClaudeMd", "color"),
)
"""What a misspelt field is compared with."""

FIELD_NAMES = frozenset((*READERS, *_WHO, *_PASSED_OVER, *_OURS_ALONE))
"""Every name of a field that is known, in small letters and without - and _."""


def _text_of(value: object) -> str:
    """What a name or a description says; a number may have been meant as text."""
    if isinstance(value, str):
        return value.strip()
    return "" if value is None or isinstance(value, bool | list | dict) else str(value)


def _word(value: object) -> str:
    """A value of one word; what looks like a comment behind it was one before the repair."""
    return value.partition(" #")[0].strip() if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    text = _word(value) if isinstance(value, str) else value
    if isinstance(text, str):
        return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None
    return None if isinstance(text, bool) or not isinstance(text, int | float) else float(text)
