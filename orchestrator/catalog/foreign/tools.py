"""Names of tools as other programs write them -> the tools of the claude CLI. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from orchestrator.catalog.agent_file import split_rules
from orchestrator.domain.agent import EDITING_TOOLS

LOCAL_TOOLS = ("Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "Write")
"""What works in a container without network."""

LOOKING_TOOLS = tuple(tool for tool in LOCAL_TOOLS if tool not in EDITING_TOOLS)

WEB_SEARCH = "WebSearch"
"""The model API does it; the container needs no network."""

WEB_FETCH = "WebFetch"

TASK_LIST = ("TaskCreate", "TaskGet", "TaskList", "TaskUpdate")
"""The agent's own list of what to do."""

CLI_TOOLS = (*LOCAL_TOOLS, WEB_SEARCH, WEB_FETCH, *TASK_LIST)

SAME_TOOL = {
    **dict.fromkeys(("read", "view", "view_file", "readfile", "read_file", "cat"), ("Read",)),
    **dict.fromkeys(("notebookread", "getnotebooksummary", "view_file_outline"), ("Read",)),
    **dict.fromkeys(("write", "create", "createfile", "write_file", "write_to_file"), ("Write",)),
    **dict.fromkeys(("edit", "editfiles", "edit_file", "applypatch"), ("Edit", "Write")),
    **dict.fromkeys(("multiedit", "replace", "replace_file_content"), ("Edit",)),
    **dict.fromkeys(("multi_replace_file_content", "str_replace"), ("Edit",)),
    **dict.fromkeys(
        ("str_replace_editor", "file_editor", "fileeditortool", "planning_file_editor"),
        ("Read", "Edit", "Write"),
    ),
    **dict.fromkeys(("editnotebook", "runnotebooks", "notebookedit"), ("NotebookEdit",)),
    **dict.fromkeys(("execute", "shell", "bash", "powershell", "terminal", "run"), ("Bash",)),
    **dict.fromkeys(("terminaltool", "run_command", "runcommands", "runtests"), ("Bash",)),
    **dict.fromkeys(("runinterminal", "run_in_terminal", "run_shell_command"), ("Bash",)),
    **dict.fromkeys(("execute_bash", "runtasks", "runcommand", "testfailure"), ("Bash",)),
    **dict.fromkeys(("search", "codebase", "usages", "grep_search", "find"), ("Glob", "Grep")),
    **dict.fromkeys(("grep", "textsearch", "search_file_content", "greptool"), ("Grep",)),
    **dict.fromkeys(("glob", "ls", "filesearch", "list", "listdirectory", "list_dir"), ("Glob",)),
    **dict.fromkeys(("list_directory", "find_by_name", "globtool"), ("Glob",)),
    **dict.fromkeys(("findtestfiles", "searchresults"), ("Glob", "Grep")),
    **dict.fromkeys(("terminalcommand", "runtask", "createandruntask"), ("Bash",)),
    **dict.fromkeys(("todowrite", "todoread", "todo", "todos", "task_tracker"), TASK_LIST),
    **dict.fromkeys(("tasktrackertool", "write_todos"), TASK_LIST),
    **dict.fromkeys(("web",), (WEB_FETCH, WEB_SEARCH)),
    **dict.fromkeys(("websearch", "web_search", "search_web", "google_web_search"), (WEB_SEARCH,)),
    **dict.fromkeys(("webfetch", "web_fetch", "fetch", "read_url_content"), (WEB_FETCH,)),
}
"""Names in small letters -> the tools that do the same here."""

OTHER_AGENTS = frozenset(("agent", "task", "custom-agent", "runsubagent", "delegate"))
"""Tools that run other agents."""

ASKING = frozenset(("askuserquestion", "ask_user", "ask_question", "askquestions"))
"""Tools that ask a person."""

NOT_NEEDED = frozenset(
    (
        *("bashoutput", "killshell", "killbash", "taskoutput", "taskstop", "terminallastcommand"),
        *("terminalselection", "getterminaloutput", "gettaskoutput", "exitplanmode"),
        *("enterplanmode", "think", "changes", "problems", "vscode"),
        *("vscodeapi", "extensions", "opensimplebrowser", "githubrepo", "new", "finish"),
        *("skill", "slashcommand", "workflow", "sendmessage", "toolsearch", "structuredoutput"),
        *("listmcpresources", "readmcpresource", "listmcpresourcestool", "readmcpresourcetool"),
        *("monitor", "enterworktree", "exitworktree", "lsp", "invoke_skill", "activate_skill"),
    )
)
"""Tools for the window of another program, or for its bookkeeping."""

_RULE = re.compile(r"([^()]+)\((.*)\)")

ToolKind = Literal[
    "tool", "every", "agent", "server", "asks", "not needed", "odd pattern", "unknown"
]


class ToolMeaning(NamedTuple):
    """What a name stands for."""

    kind: ToolKind
    rules: tuple[str, ...] = ()
    """Of a tool: in the words of permissions.allow. Of agents: which."""


def tool_meaning(name: str) -> ToolMeaning:
    """What a tool of another program is here. A name that is not known allows nothing."""
    match = _RULE.fullmatch(name)
    tool, pattern = (match[1].strip(), match[2].strip()) if match else (name, "")
    plain = tool.lower()
    if name in ("*", "all"):
        return ToolMeaning("every")
    if plain in OTHER_AGENTS:
        return ToolMeaning(
            "agent", tuple(each for part in pattern.split(",") if (each := part.strip()))
        )
    if re.search(r"[()]", pattern):
        return ToolMeaning("odd pattern")
    if tool in CLI_TOOLS:
        return ToolMeaning("tool", (_rule(tool, pattern),))
    if plain.startswith(("mcp__", "mcp_")):
        return ToolMeaning("server")
    kind, slash, part = plain.partition("/")
    for word in (part, kind) if slash else (plain,):
        # VS Code's own are "edit/editFiles"; "github/get_issue" is a tool of an MCP server.
        if word in SAME_TOOL:
            return ToolMeaning("tool", tuple(_rule(each, pattern) for each in SAME_TOOL[word]))
        if word in OTHER_AGENTS:
            return ToolMeaning("agent")
        if word in ASKING:
            return ToolMeaning("asks")
        if word in NOT_NEEDED:
            return ToolMeaning("not needed")
    return ToolMeaning("server" if slash else "unknown")


def split_names(text: str) -> Iterator[str]:
    """`Read, Bash(git diff:*)` -> each of them; names without commas between them are told apart
    if each is one.
    """
    for part in split_rules(text.strip().removeprefix("[").removesuffix("]")):
        name = part.strip().strip("\"'")
        words = name.split()
        if len(words) > 1 and "(" not in name and all(map(_is_known, words)):
            yield from words
        elif name:
            yield name


def _is_known(word: str) -> bool:
    return tool_meaning(word).kind != "unknown"


def _rule(tool: str, pattern: str) -> str:
    return f"{tool}({pattern})" if pattern else tool
