"""An agent's rules against a tool call -> it may run, its caller is asked, or it may not; and why.

For every CLI that does not decide by itself: the call is told in claude's words, whatever the CLI
calls its tools, and so are the rules. A rule that denies wins, then one that asks, then one that
allows; what no rule covers may not run. In doubt, a rule that denies or asks covers a call, and one
that allows does not. Pure.

What a pattern says of a command is advice all the same: a program that may run can run others. What
an agent can reach is decided by its container.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from orchestrator.domain import Frozen
from orchestrator.domain.agent import EDITING_TOOLS, AgentSpec
from orchestrator.domain.container import HOME, WORKSPACE
from orchestrator.runners.contract import RuleDecision
from orchestrator.runners.rule_names import MCP, rule_tool, server_names, server_rules
from orchestrator.runners.shell_parts import Part, Redirection, Word, parts_of

SHOWN_CHARS = 80
"""Of a command, in a reason."""

_READING_TOOLS = frozenset(("Read", "Glob", "Grep", "NotebookRead", "LS"))

_PATH_FIELDS = ("file_path", "notebook_path", "path")

_NO_FILES = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr"))
"""What may be written to whatever the rules say of files."""

_WRAPPERS = frozenset(
    (
        *("sudo", "doas", "env", "command", "builtin", "exec", "nohup", "nice", "ionice"),
        *("setsid", "stdbuf", "timeout", "time", "xargs", "busybox", "unbuffer", "chronic"),
        *("find", "fd", "watch", "flock", "strace", "ltrace", "taskset", "chrt", "prlimit"),
        *("unshare", "chroot", "setpriv", "toybox", "parallel", "entr"),
    )
)
"""Programs that run the one which is named behind them, and their options."""

_SHELLS = frozenset(
    (
        *("sh", "bash", "dash", "zsh", "ksh", "ash"),
        *("eval", "trap", "su", "runuser", "script"),
    )
)
"""Programs that run what stands in their arguments; if nothing does, what they read."""

MAX_PATH_CHARS = 4096
"""Of a path that is compared; Linux opens no longer one."""

WRAPPED_WORDS = 32
"""Words behind a wrapper, each of which may be the program that it runs."""

SHELLS_WITHIN = 4
"""Shells that run shells; what runs deeper may be anything."""

_ANOTHER_NAME = re.compile(r"/proc/.*/(cwd|root|fd)(/|$)|/dev/fd(/|$)", re.DOTALL)
"""Paths that lead to files whose names they do not tell."""

_MOVING = frozenset(("cd", "pushd", "popd"))
"""Commands after which relative paths begin elsewhere."""

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


class AgentRules(Frozen):
    """What an agent may call."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    cwd: str = WORKSPACE
    """Where relative paths begin."""


def rules_of(agent: AgentSpec) -> AgentRules:
    """The agent's own, and those that allow MCP servers of which it names no tool."""
    permissions = agent.permissions
    whole = server_rules(permissions, server_names(agent))
    return AgentRules(
        allow=(*permissions.allow, *whole), ask=agent.ask_rules, deny=agent.deny_rules
    )


def decide(tool: str, given: Mapping[str, object], rules: AgentRules) -> RuleDecision:
    """What to do with a call: of a tool by its name in claude's words, with this input."""
    if tool == "Bash":
        return _decide_command(given, rules)
    if rule := _covering(rules.deny, tool, given, rules.cwd, strict=True):
        return RuleDecision(verdict="deny", why=f"the rule {rule} denies it")
    if rule := _covering(rules.ask, tool, given, rules.cwd, strict=True):
        return RuleDecision(verdict="ask", why=f"the rule {rule} says to ask")
    if rule := _covering(rules.allow, tool, given, rules.cwd, strict=False):
        return RuleDecision(verdict="allow", why=f"the rule {rule} allows it")
    return RuleDecision(verdict="deny", why=f"no rule allows this call of {tool}")


def _pattern(rule: str) -> str:
    """What stands in its parentheses; "" for the tool as a whole."""
    pattern = rule.partition("(")[2].removesuffix(")")
    return "" if pattern in ("*", "**", ":*") else pattern


def _is_like(text: str, pattern: str) -> bool:
    """Whether a text is as the pattern says: a "*" is anything, of any length. In linear time."""
    if "*" not in pattern:
        return text == pattern
    first, *middle, last = pattern.split("*")
    if len(text) < len(first) + len(last) or not text.startswith(first):
        return False
    if not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def _covering(
    rules: Iterable[str], tool: str, given: Mapping[str, object], cwd: str, *, strict: bool
) -> str:
    """The first rule that covers a call of any tool but Bash; in doubt, if it is to be `strict`."""
    return next((rule for rule in rules if _covers(rule, tool, given, cwd, strict)), "")


def _covers(rule: str, tool: str, given: Mapping[str, object], cwd: str, strict: bool) -> bool:
    named, pattern = rule_tool(rule), _pattern(rule)
    if tool.startswith(MCP):
        if not named.startswith(MCP):
            return False
        whole = _is_like(tool, named) or tool.startswith(f"{named}__")
        return whole and (strict or not pattern)
    if not pattern:
        return named == tool or (strict and _is_like(tool, named))
    if named in EDITING_TOOLS:
        alike = tool in EDITING_TOOLS if strict or named == "Edit" else tool == named
        return alike and _covers_path(pattern, _path(given), cwd, strict)
    if named == "Read":
        # One that names no path looks through where it is; of some searches it is not told.
        untold = tool == "Grep" and any(name in given for name in _PATH_FIELDS)
        path = _path(given) or ("" if tool == "Read" or untold else cwd)
        within = strict and tool == "Grep" and bool(path) and _may_find(pattern, path, cwd)
        return tool in _READING_TOOLS and (within or _covers_path(pattern, path, cwd, strict))
    if named == tool == "WebFetch" and pattern.startswith("domain:"):
        return _covers_host(pattern.removeprefix("domain:"), given.get("url"), strict)
    return named == tool and strict  # a pattern that is not understood


def _path(given: Mapping[str, object]) -> str:
    paths = [given[name] for name in _PATH_FIELDS if name in given]
    return paths[0] if len(paths) == 1 and isinstance(paths[0], str) else ""


def _covers_path(pattern: str, path: str, cwd: str, strict: bool) -> bool:
    """As claude reads patterns: //absolute, ~/of HOME, /of the workspace, or as in .gitignore."""
    if not path or "\0" in path or len(path) > MAX_PATH_CHARS:
        return strict
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    whole = posixpath.normpath(posixpath.join(cwd, path))
    whole = "/" + whole.lstrip("/")
    if _ANOTHER_NAME.match(whole):
        return strict
    return any(_is_at(whole, place) for place in _places(pattern, cwd, strict))


def _may_find(pattern: str, path: str, cwd: str) -> bool:
    """Whether a search of a directory may come upon what a pattern names."""
    searched = posixpath.normpath(posixpath.join(cwd, path)).rstrip("/") + "/"
    for place in _places(pattern, cwd, strict=True):
        fixed = re.split(r"[*?]", place)[0]
        if fixed != place:
            fixed = posixpath.dirname(fixed)
        fixed = fixed.rstrip("/") + "/"
        if fixed.startswith(searched) or (searched.startswith(fixed) and re.search(r"[*?]", place)):
            return True
    return False


def _places(pattern: str, cwd: str, strict: bool) -> list[str]:
    """The pattern from the root; of a doubtful one, every way in which it can be meant."""
    if pattern.startswith("//"):
        return [pattern[1:]]
    if pattern.startswith("~/"):
        return [HOME + pattern[1:]]
    if pattern.startswith("/"):
        absolute = strict or pattern.startswith((f"{WORKSPACE}/", f"{HOME}/"))
        return [cwd + pattern, *([pattern] if absolute else [])]
    pattern = pattern.removeprefix("./")
    if "/" not in pattern.rstrip("/"):
        return [f"{cwd}/{pattern}", f"{cwd}/**/{pattern}", *([f"/**/{pattern}"] if strict else [])]
    return [f"{cwd}/{pattern}"]


def _is_at(path: str, place: str) -> bool:
    """Whether a path is at a place, or below it: "**" is any number of names, "*" and "?" stay
    within one. In time that grows with the length of both: whose path it is wants us to wait.
    """
    at = {0}
    """How far the pattern so far may have come in the path."""
    end = len(path)
    for piece in re.split(r"(/\*\*/|/\*\*$|\*\*|\*|\?)", place.rstrip("/")):
        match piece:
            case "/**/":
                at = {here + 1 for here in at if path.startswith("/", here)}
                first = min(at, default=end)
                at |= {here for here in range(first + 1, end + 1) if path[here - 1] == "/"}
            case "/**":
                pass  # a directory covers what it has
            case "**":
                at = set(range(min(at, default=end + 1), end + 1))
            case "*":
                at = _to_the_end_of_a_name(path, at)
            case "?":
                at = {here + 1 for here in at if here < end and path[here] != "/"}
            case _:
                at = {here + len(piece) for here in at if path.startswith(piece, here)}
    return any(here == end or path[here] == "/" for here in at)


def _to_the_end_of_a_name(path: str, at: set[int]) -> set[int]:
    reached: set[int] = set()
    for here in sorted(at):
        if here not in reached:
            slash = path.find("/", here)
            reached.update(range(here, (len(path) if slash < 0 else slash) + 1))
    return reached


def _covers_host(pattern: str, url: object, strict: bool) -> bool:
    host = _host(url)
    if not host:
        return strict
    return _is_like(host, pattern.lower().rstrip("."))


def _host(url: object) -> str:
    """The host of a URL that everybody reads alike; "" of any other."""
    if not isinstance(url, str) or re.search(r"[\\@\s\x00-\x20\x7f]", url) or not url.isascii():
        return ""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".").lower()
    except ValueError:
        return ""
    return host if parts.scheme.lower() in ("http", "https") else ""


def _decide_command(given: Mapping[str, object], rules: AgentRules) -> RuleDecision:
    command = given.get("command")
    denying, asking, allowing = (
        [rule for rule in some if rule_tool(rule) == "Bash"]
        for some in (rules.deny, rules.ask, rules.allow)
    )
    if rule := _whole(denying):
        return RuleDecision(verdict="deny", why=f"the rule {rule} denies it")
    parts = parts_of(command) if isinstance(command, str) else None
    if not parts:
        return _decide_unread(denying, asking, allowing, rules)
    rulings: list[RuleDecision] = []
    begins = given.get("cwd", rules.cwd) == rules.cwd or _goes_to(str(command), rules.cwd)
    moves = not begins or any(_moves(part, rules.cwd) for part in parts)
    for part in parts:
        rulings.append(_decide_part(part, denying, asking, allowing, rules.cwd))
        whole = bool(_whole(allowing))
        rulings += (_decide_file(each, whole, rules, moves) for each in part.redirections)
    return min(rulings, key=lambda ruling: ("deny", "ask", "allow").index(ruling.verdict))


def _goes_to(command: str, cwd: str) -> bool:
    """Whether a command line begins with going there, for all that follows."""
    return re.match(rf"\s*cd {re.escape(cwd)}[ \t]*(;|&&|\n)", command) is not None


def _moves(part: Part, cwd: str) -> bool:
    """Whether relative paths may begin elsewhere after a command."""
    name, *rest = part.words or [Word(raw="", text="", varies=False)]
    return name.varies or (name.text in _MOVING and [word.text for word in rest] != [cwd])


def _decide_unread(
    denying: Sequence[str], asking: Sequence[str], allowing: Sequence[str], rules: AgentRules
) -> RuleDecision:
    """A command line whose parts cannot be told surely."""
    if denying or any(rule_tool(rule) in EDITING_TOOLS and _pattern(rule) for rule in rules.deny):
        return RuleDecision(
            verdict="deny", why=f"{_CANNOT_TELL}, so a rule that denies may be about it"
        )
    if asking and (_whole(asking) or _whole(allowing)):
        return RuleDecision(
            verdict="ask", why=f"{_CANNOT_TELL}, so a rule that asks may be about it"
        )
    if rule := _whole(allowing):
        return RuleDecision(verdict="allow", why=f"the rule {rule} allows it")
    return RuleDecision(verdict="deny", why=f"{_CANNOT_TELL}, and no rule allows every command")


_CANNOT_TELL = (
    "it cannot be told for sure which commands this line runs; make each a call of its own"
)


def _decide_part(
    part: Part, denying: Sequence[str], asking: Sequence[str], allowing: Sequence[str], cwd: str
) -> RuleDecision:
    if not part.words:
        return RuleDecision(verdict="allow", why="it runs no command")
    shown = part.raw if len(part.raw) <= SHOWN_CHARS else f"{part.raw[:SHOWN_CHARS]}…"
    readings = _readings(part.words)
    if rule := _first(denying, lambda pattern: _may_be(pattern, readings)):
        return RuleDecision(verdict="deny", why=f"the rule {rule} denies `{shown}`")
    if rule := _whole(asking) or _first(asking, lambda pattern: _may_be(pattern, readings)):
        return RuleDecision(verdict="ask", why=f"the rule {rule} says to ask about `{shown}`")
    if part.raw == f"cd {cwd}":
        return RuleDecision(verdict="allow", why="it goes to where the agent works")
    if rule := _whole(allowing) or _first(allowing, lambda pattern: _is_surely(pattern, part)):
        return RuleDecision(verdict="allow", why=f"the rule {rule} allows `{shown}`")
    return RuleDecision(verdict="deny", why=f"no rule allows `{shown}`")


def _decide_file(
    opened: Redirection, every_command: bool, rules: AgentRules, moves: bool
) -> RuleDecision:
    """What the rules say of a file that the shell opens for a command, elsewhere if it `moves`."""
    path = opened.target.text
    if path in _NO_FILES:
        return RuleDecision(verdict="allow", why="it is no file")
    tool = "Write" if opened.writes else "Read"
    given = {"file_path": "" if moves and not path.startswith(("/", "~")) else path}
    if rule := _covering(filter(_pattern, rules.deny), tool, given, rules.cwd, strict=True):
        return RuleDecision(verdict="deny", why=f"the rule {rule} denies {path}")
    if rule := _covering(filter(_pattern, rules.ask), tool, given, rules.cwd, strict=True):
        return RuleDecision(verdict="ask", why=f"the rule {rule} says to ask about {path}")
    if every_command or _covering(rules.allow, tool, given, rules.cwd, strict=False):
        return RuleDecision(verdict="allow", why="a rule allows it")
    said = "writes to" if opened.writes else "reads"
    return RuleDecision(verdict="deny", why=f"no rule allows that the shell {said} {path}")


def _whole(rules: Iterable[str]) -> str:
    return next((rule for rule in rules if not _pattern(rule)), "")


def _first(rules: Iterable[str], covers: Callable[[str], bool]) -> str:
    return next((rule for rule in rules if _pattern(rule) and covers(_pattern(rule))), "")


def _is_surely(pattern: str, part: Part) -> bool:
    """Whether a command is what a rule allows, as it is written."""
    if not part.words or part.words[0].varies:
        return False
    if pattern.endswith(":*"):
        begin = pattern.removesuffix(":*")
        return part.raw == begin or part.raw.startswith(f"{begin} ")
    if pattern.endswith(" *") and part.raw == pattern.removesuffix(" *"):
        return True
    return _is_like(part.raw, pattern)


def _readings(words: Sequence[Word], shells: int = SHELLS_WITHIN) -> list[Sequence[Word]]:
    """What a command may turn out to be: itself, without assignments, and what it runs."""
    found = [words]
    while words and _ASSIGNMENT.match(words[0].raw):
        words = words[1:]
        found.append(words)
    name = posixpath.basename(words[0].text) if words else ""
    if name in _WRAPPERS:
        # Its options may take values: whatever stands behind it may be what it runs.
        for start in range(1, min(len(words), 1 + WRAPPED_WORDS)):
            found.append(words[start:])
            if posixpath.basename(words[start].text) in _SHELLS:
                found += _readings(words[start:], shells)
                break
    elif name in _SHELLS and not shells:
        found.append([_ANYTHING])
    elif name in _SHELLS:
        scripts = [word.text for word in words[1:]]
        if all(script.startswith("-") for script in scripts):
            found.append([_ANYTHING])
        for script in [" ".join(scripts)] if name == "eval" else scripts:
            inside = parts_of(script)
            found += [[_ANYTHING]] if inside is None else []
            found += [each for part in inside or () for each in _readings(part.words, shells - 1)]
    return found


_ANYTHING = Word(raw="", text="", varies=True)


def _may_be(pattern: str, readings: Sequence[Sequence[Word]]) -> bool:
    """Whether a command could turn out to be what a rule names."""
    return any(_may_match(pattern, words) for words in readings if words)


def _may_match(pattern: str, words: Sequence[Word]) -> bool:
    name, texts = posixpath.basename(words[0].text), [word.text for word in words[1:]]
    written = " ".join(word.raw for word in words)
    alike = {written, " ".join([words[0].text, *texts]), " ".join([name, *texts])}
    begin = pattern.removesuffix(":*")
    if begin != pattern:
        if any(text == begin or text.startswith(f"{begin} ") for text in alike):
            return True
    elif any(_is_like(text, pattern) or _is_like(f"{text} ", pattern) for text in alike):
        return True
    for wanted, word, text in zip(begin.split(), words, [name, *texts], strict=False):
        if word.varies:
            return True  # and all before it are as the rule has them
        if not _is_like(text, wanted):
            return False
    return False
