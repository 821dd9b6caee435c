"""The words of a command line, up to the one that is being typed -> what could stand there.

A person waits for this with a finger on the Tab key: nothing here loads docker or parses agents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from orchestrator.surfaces.cli.command_help import argument_name
from orchestrator.surfaces.text import one_line, shortened

FILES, FOLDERS = ":files", ":dirs"
"""Instead of words: the shell completes paths itself."""

ABOUT_CHARS = 60
"""Of what is said beside a word."""


_OFFERED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Candidate(NamedTuple):
    """What could be typed, and what it means."""

    word: str
    about: str = ""


class Typed(NamedTuple):
    """Where the cursor stands in a command line."""

    command: Any
    """The innermost one that is named."""
    arguments: tuple[str, ...]
    """What was given to it before, without options."""
    option: Any
    """The one whose value is being typed; None if none is."""
    agents_dir: str
    """As an option says."""


def candidates(root: Any, words: Sequence[str]) -> list[Candidate]:
    """What could stand in the place of the last word."""
    *before, current = words or [""]
    typed = _parsed(root, before)
    if typed.option is not None:
        return _fitting(_values(typed, typed.option), current)
    name, equals, value = current.partition("=")
    if equals and name.startswith("--"):
        option = _option(typed.command, name)
        found = _fitting(_values(typed, option), value) if option is not None else []
        return [each._replace(word=f"{name}={each.word}") for each in found]
    if current.startswith("-"):
        return _fitting(_options(typed.command), current)
    commands = getattr(typed.command, "commands", {})
    if commands:
        shown = ((name, each) for name, each in commands.items() if not each.hidden)
        return _fitting([Candidate(name, _about(each.help)) for name, each in shown], current)
    argument = _argument(typed)
    return _fitting(_values(typed, argument), current) if argument is not None else []


def _parsed(root: Any, words: Sequence[str]) -> Typed:
    command, option, agents_dir = root, None, ""
    arguments: list[str] = []
    only_arguments = False
    for word in words:
        if option is not None:
            agents_dir = word if option.name == "agents_dir" else agents_dir
            option = None
        elif word == "--":
            only_arguments = True
        elif word.startswith("-") and len(word) > 1 and not only_arguments:
            name, equals, value = word.partition("=")
            found = _option(command, name)
            takes_value = found is not None and not found.is_flag
            if takes_value and equals:
                agents_dir = value if found.name == "agents_dir" else agents_dir
            elif takes_value:
                option = found
        elif word in getattr(command, "commands", {}):
            command, arguments = command.commands[word], []
        else:
            arguments.append(word)
    return Typed(command, tuple(arguments), option, agents_dir)


def _option(command: Any, name: str) -> Any:
    for parameter in command.params:
        if parameter.param_type_name == "option" and name in parameter.opts:
            return parameter
    return None


def _options(command: Any) -> list[Candidate]:
    found = [
        Candidate(max(parameter.opts, key=len), _about(parameter.help))
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
    ]
    return [*found, Candidate("--help", "show the page of this command")]


def _argument(typed: Typed) -> Any:
    """The argument that comes next; None if there is none."""
    mine = [each for each in typed.command.params if each.param_type_name == "argument"]
    if not mine:
        return None
    at = len(typed.arguments)
    if at < len(mine):
        return mine[at]
    return mine[-1] if mine[-1].nargs != 1 else None


def _values(typed: Typed, parameter: Any) -> list[Candidate]:
    """What an option or argument takes."""
    choices = parameter.type_descriptor.choices or ()
    if choices:
        return [Candidate(str(getattr(each, "value", each))) for each in choices]
    kind = argument_name(parameter) if parameter.param_type_name == "argument" else ""
    kind = kind or str(parameter.metavar or parameter.name).upper()
    if kind == "NAME":  # of an agent, or of something that is not known here
        kind = "AGENT" if parameter.name in ("agent", "name") else ""
    known: dict[str, Callable[[Typed], list[Candidate]]] = {
        "AGENT": _agents,
        "SERVER": _servers,
        "TOOL": _tools,
        "RUN": _runs,
        "[RUN] [CALL...]": _calls,
        "[RUN [MESSAGE]] ANSWER": _questions,
        "SESSION": _sessions,
        "STATUS": _statuses,
        "ACT": _acts,
        "SHELL": lambda _: [Candidate(shell) for shell in ("bash", "zsh", "fish")],
        "TOPIC": _topics,
        "DIR": lambda _: [Candidate(FOLDERS)],
        "FILE": lambda _: [Candidate(FILES)],
        "PATH": lambda _: [Candidate(FILES)],
    }
    find = known.get(kind) or next((known[end] for end in ("FILE", "DIR") if end in kind), None)
    return find(typed) if find is not None else []


def _agents_dir(typed: Typed) -> Path:
    from orchestrator.settings import read_settings

    flag = Path(typed.agents_dir).absolute() if typed.agents_dir else None
    return read_settings(flags={"agents_dir": flag}).agents_dir


def _servers(typed: Typed) -> list[Candidate]:
    folders = _agents_dir(typed).glob("servers/*/server.yaml")
    names = sorted(path.parent.name for path in folders)
    return [Candidate(name) for name in names if _OFFERED.fullmatch(name)]


def _tools(typed: Typed) -> list[Candidate]:
    """Of the server that is named before, as it was pinned."""
    known = [each.word for each in _servers(typed)]
    server = typed.arguments[0] if typed.arguments else ""
    if server not in known:
        return []
    try:
        lock = json.loads((_agents_dir(typed) / "servers" / server / "tools.lock.json").read_text())
        found = [each["definition"] for each in lock["tools"]]
        tools = [(str(tool["name"]), str(tool.get("description", ""))) for tool in found]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return [Candidate(name, about) for name, about in tools if _OFFERED.fullmatch(name)]


def _agents(typed: Typed) -> list[Candidate]:
    folder = _agents_dir(typed)
    folders = {path.parent.name for path in folder.glob("*/agent.md")}
    files = {path.stem for end in ("md", "yaml", "yml") for path in folder.glob(f"*.{end}")}
    # Names as agents have them alone: a shell would run what another one holds.
    return [Candidate(n) for n in sorted(folders | files - {"README"}) if _OFFERED.fullmatch(n)]


def _peek() -> tuple[Any, str]:
    from orchestrator.settings import read_settings
    from orchestrator.store.peek import Peek

    settings = read_settings()
    return Peek(settings.state_dir / "runs.sqlite"), settings.project


def _runs(typed: Typed) -> list[Candidate]:  # noqa: ARG001 the shape of all of them
    peek, project = _peek()
    found = [Candidate(run.run_id, f"{run.agent} {run.status}") for run in peek.runs(project)]
    return [*found, Candidate("last", "the newest run")] if found else []


def _calls(typed: Typed) -> list[Candidate]:
    """Runs and calls at first; after a run, its calls."""
    peek, _ = _peek()
    if not typed.arguments:
        return [*map(_candidate, peek.calls()), *_runs(typed)]
    return [each for each in map(_candidate, peek.calls()) if each.word not in typed.arguments]


def _questions(typed: Typed) -> list[Candidate]:
    peek, _ = _peek()
    if not typed.arguments:
        return [*map(_candidate, peek.questions()), *_runs(typed)]
    return list(map(_candidate, peek.questions(typed.arguments[0])))


def _sessions(typed: Typed) -> list[Candidate]:  # noqa: ARG001 the shape of all of them
    peek, project = _peek()
    return list(map(_candidate, peek.sessions(project)))


def _statuses(typed: Typed) -> list[Candidate]:  # noqa: ARG001 the shape of all of them
    from orchestrator.domain.result import RunStatus

    return [Candidate("open", "has not ended"), *map(Candidate, get_args(RunStatus))]


def _acts(typed: Typed) -> list[Candidate]:  # noqa: ARG001 the shape of all of them
    from orchestrator.domain.audit import AuditAct

    return list(map(Candidate, get_args(AuditAct)))


def _topics(typed: Typed) -> list[Candidate]:  # noqa: ARG001 the shape of all of them
    from orchestrator.surfaces.cli.setup.pages import ABOUT

    return [Candidate(topic, about) for topic, about in ABOUT.items()]


def _candidate(pair: tuple[str, str]) -> Candidate:
    return Candidate(one_line(pair[0]), pair[1])


def _fitting(found: Sequence[Candidate], current: str) -> list[Candidate]:
    """Those that begin with what was typed, made harmless: agents have written some of it."""
    return [
        Candidate(each.word, shortened(one_line(each.about), ABOUT_CHARS))
        for each in found
        if each.word in (FILES, FOLDERS) or (each.word.startswith(current) and each.word)
    ]


def _about(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def joined_at_equals(words: Sequence[str]) -> list[str]:
    """The words as they were typed: bash gives `--by=agent` as three."""
    joined: list[str] = []
    for word in words:
        begun = bool(joined) and joined[-1].startswith("--")
        if begun and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined
