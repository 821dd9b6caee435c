"""The pages that `-h` shows, and what is said of a command line that is wrong. The library's own
write {agent}, [[DIR]] and <list[str]>.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

SECTIONS: dict[str, tuple[str, ...]] = {
    "Run agents": ("run", "runs", "show", "logs", "apply", "wait", "resume", "cancel"),
    "Decide": ("dashboard", "pending", "reply", "approve", "reject"),
    "Look closer": ("plan", "cost", "audit", "sessions"),
    "Write agents": ("init", "new", "import", "agents", "servers", "trust"),
    "Set up": (
        *(
            "serve",
            "connect",
            "gateway",
            "doctor",
            "config",
            "images",
            "completion",
            "demo",
            "help",
        ),
        "uninstall",
    ),
}
"""Of the first page; a command that is in none of them comes last."""


_RANGE = re.compile(r"\s*\[x[<>]=[^]]*\]$|; x[<>]=[^]]*(?=\]$)")
"""What the library says of a number's limits; an error says it better."""


class PlainCommand(TyperCommand):
    """A command whose page says AGENT where it takes an agent."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *_argument_names(self, ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class PlainGroup(TyperGroup):
    """The same for a command that has others below it; each of them gets a line."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        more = "[COMMAND]" if self.invoke_without_command else "COMMAND"
        return ["[OPTIONS]", *_argument_names(self, ctx), more]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        shown = {name: each for name, each in self.commands.items() if not each.hidden}
        sections = SECTIONS if ctx.parent is None else {}
        grouped = {name for names in sections.values() for name in names}
        rest = tuple(name for name in shown if name not in grouped)
        for title, names in {**sections, "More" if sections else "Commands": rest}.items():
            rows = [(name, _first_line(shown[name].help)) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Commands(typer.Typer):
    """A group of commands, each with such a page."""

    def __init__(self, help_: str, **options: Any) -> None:
        super().__init__(
            cls=PlainGroup,
            help=help_,
            context_settings=HELP_OPTIONS,
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,  # plain help: half the time
            **{"no_args_is_help": True, **options},
        )

    def command(  # type: ignore[override]  # of its options, those that are used here
        self, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Add a function as a command."""
        return super().command(name, **{"cls": PlainCommand, **options})


def argument_name(parameter: Any) -> str:
    """What an argument or option is called: AGENT, --limit."""
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper())
        return name if " " in name else name.strip("[]")
    return str(max(parameter.opts, key=len))


def _argument_names(command: Any, ctx: Any) -> Iterator[str]:
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "argument" and not parameter.hidden:
            name = argument_name(parameter)
            if " " in name:  # it says itself what may be left out
                yield name
                continue
            name = name if parameter.required else f"[{name}]"
            yield f"{name}..." if parameter.nargs != 1 else name


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        if parameter.hidden:
            continue
        if parameter.param_type_name == "argument":
            rows["Arguments"].append((argument_name(parameter), parameter.help or ""))
        elif parameter.name == "help":
            rows["Options"].append(("-h, --help", "Show this page."))
        else:
            rows["Options"].append(_option_row(parameter, ctx))
    for title, lines in rows.items():
        if lines:
            with formatter.section(title):
                formatter.write_dl(lines)


def _option_row(parameter: Any, ctx: Any) -> tuple[str, str]:
    name, text = parameter.get_help_record(ctx)
    choices = [
        str(getattr(each, "value", each)) for each in parameter.type_descriptor.choices or ()
    ]
    if "<" in name:
        name = re.sub("<.*>", parameter.name.upper().strip("_"), name)
        text += f" One of {', '.join(choices)}." if choices else ""
    return name, _RANGE.sub("", text)


def _first_line(text: str | None) -> str:
    """The first sentence, or what it says before a semicolon or a colon."""
    first = " ".join((text or "").partition("\n\n")[0].split())
    for end in ("; ", ": ", ". "):
        first = first.partition(end)[0]
    return first.rstrip(".")


# A command line that is wrong


def is_abort(exc: BaseException) -> bool:
    """Whether the person gave up at a prompt."""
    return isinstance(exc, typer.Abort)


def usage_message(exc: BaseException) -> str | None:
    """What is wrong with a command line, in our words; the library's own speak of its types. None
    of an exception that is about something else.
    """
    if not isinstance(exc, typer.TyperException):
        return None
    context = getattr(exc, "ctx", None)
    said = _usage_words(exc, getattr(exc, "param", None))
    if said is None:  # a sentence of ours, which says what to do
        return exc.message
    if said.endswith("?") or context is None:
        return said
    if said.endswith((" is missing", " is too much")):
        return f"{said}: {' '.join(context.get_usage().split()[1:])}"
    return f"{said}; `{context.command_path} -h` tells more"


def _usage_words(exc: typer.TyperException, parameter: Any) -> str | None:
    kind, text = type(exc).__name__, exc.message
    if kind == "MissingParameter" and parameter is not None:
        return f"{argument_name(parameter)} is missing"
    if parameter is not None:
        return f"{argument_name(parameter)} takes {_wanted(parameter)}"
    option = getattr(exc, "option_name", "")
    if kind == "NoSuchOption":
        close = getattr(exc, "possibilities", None) or ()
        return f"there is no option {option}{_guess(close)}"
    if kind == "BadOptionUsage":
        takes = "a value after it" if "requires" in text else "no value"
        return f"{option} takes {takes}"
    if found := re.match(r"No such command '(.*?)'\.(?: Did you mean (.*)\?)?$", text, re.DOTALL):
        close = re.findall(r"'([^']*)'", found[2] or "")
        return f"there is no command {found[1]!r}{_guess(close)}"
    if found := re.match(r"Got unexpected extra argument\(?s?\)? \((.*)\)$", text, re.DOTALL):
        return f"{found[1]} is too much"
    return "a command is missing" if text == "Missing command." else None


def _wanted(parameter: Any) -> str:
    """What an option or argument takes."""
    annotation = str(parameter.type_descriptor.annotation)
    choices = [
        str(getattr(each, "value", each)) for each in parameter.type_descriptor.choices or ()
    ]
    if choices:
        return f"one of {', '.join(choices)}"
    number = "a whole number" if "int" in annotation else "a number" * ("float" in annotation)
    least = f", {parameter.min:g} or more" if parameter.min is not None else ""
    most = f", {parameter.max:g} or less" if parameter.max is not None else ""
    return f"{number or 'something else'}{least}{most}"


def _guess(close: Any) -> str:
    return f"; did you mean {' or '.join(close[:3])}?" if close else ""
