"""Agent files as other programs have them, and what each comes to: the fields and the notes.

Shapes and quirks are those that were counted in 1,334 public files for Claude Code and 229 for
Copilot; the files are made up.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from orchestrator.domain.agent import AgentSpec

CLAUDE = ".claude/agents/a.md"
COPILOT = ".github/agents/a.agent.md"
OPENHANDS = ".openhands/agents/a.md"
PERSONA = "personas/a.yaml"

LOCAL = ("Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "Write")
LOOKING = ("Bash", "Glob", "Grep", "Read")
TASK_LIST = ("TaskCreate", "TaskGet", "TaskList", "TaskUpdate")

ABSENT = (
    "1 : names no tools, which is every tool in Claude Code; here it may use Bash, Edit, Glob, "
    "Grep, NotebookEdit, Read and Write, on a copy of the workspace and without network"
)


class ForeignFile(NamedTuple):
    """A file, and what is expected of it."""

    about: str
    path: str
    text: str
    agent: AgentSpec | None = None
    """None if it is none, or cannot be used."""
    notes: tuple[str, ...] = ()
    """How each note, or each problem, begins: line, field, message."""


def agent(*tools: str, **fields: object) -> AgentSpec:
    """What a file comes to that is called a, does a, and says "Do a." in its prompt."""
    deny = fields.pop("deny", ())
    known = {
        "name": "a",
        "description": "Does a.",
        "prompt": "Do a.",
        "timeout_ms": 600_000,
        "permissions": {"allow": list(tools), "deny": deny},
    }
    return AgentSpec.model_validate({**known, **fields})


def claude(fields: str, head: str = "name: a\ndescription: Does a.") -> str:
    """The text of a file whose further fields begin on line 4."""
    lines = [line for line in (head, textwrap.dedent(fields).strip("\n")) if line]
    return "\n".join(("---", *lines, "---", "", "Do a.", ""))


def one(about: str, fields: str, expected: AgentSpec | None, *notes: str) -> ForeignFile:
    """A file for Claude Code with a good name and description."""
    return ForeignFile(about, CLAUDE, claude(fields), expected, notes)


def headed(about: str, head: str, expected: AgentSpec | None, *notes: str) -> ForeignFile:
    """A file for Claude Code that reads files; its name and description are the matter."""
    return ForeignFile(about, CLAUDE, claude("tools: Read", head), expected, notes)


def described(about: str, description: str, text: str, *notes: str) -> ForeignFile:
    """The same; its description is, and comes to this text."""
    head = f"name: a\n{textwrap.dedent(description).strip()}"
    return headed(about, head, agent("Read", description=text), *notes)


def copilot(about: str, fields: str, expected: AgentSpec | None, *notes: str) -> ForeignFile:
    return ForeignFile(about, COPILOT, claude(fields), expected, notes)


def openhands(about: str, fields: str, expected: AgentSpec | None, *notes: str) -> ForeignFile:
    return ForeignFile(about, OPENHANDS, claude(fields), expected, notes)


def persona(about: str, text: str, expected: AgentSpec | None, *notes: str) -> ForeignFile:
    return ForeignFile(about, PERSONA, textwrap.dedent(text), expected, notes)


QUOTED = "is not YAML as it stands; read as Claude Code reads it, as one text in quotes"
RESCUED = "is not YAML, nor does Claude Code load it; read as one text, up to the next field"

TOOLS = (
    one("names its tools with commas", "tools: Read, Grep, Bash", agent("Read", "Grep", "Bash")),
    one("names no tools", "", agent(*LOCAL), ABSENT),
    one("names tools and means none", "tools:", agent()),
    one("names an empty list", "tools: []", agent()),
    one(
        "names every tool",
        'tools: "*"',
        agent(*LOCAL),
        "4 tools: has other names here: * is Bash, Edit, Glob, Grep, NotebookEdit, Read and Write",
    ),
    one("lists its tools", "tools:\n  - Read\n  - Write", agent("Read", "Write")),
    one("lists them as JSON", 'tools: ["Read", "Edit"]', agent("Read", "Edit")),
    one("names one tool", "tools: Read", agent("Read")),
    one("forgets the commas", "tools: Read Grep Glob", agent("Read", "Grep", "Glob")),
    one(
        "switches tools on and off",
        "tools: {read: true, bash: true, write: false}",
        agent("Read", "Bash"),
        "4 tools: has other names here: read is Read; bash is Bash",
    ),
    one(
        "switches tools off",
        "tools: {write: false, edit: false, webfetch: maybe}",
        agent("Bash", "Glob", "Grep", "NotebookEdit", "Read"),
        "1 : names no tools, which is every tool in Claude Code; here it may use Bash, Glob, Grep, "
        "NotebookEdit and Read, on a copy",
        "4 tools: left out: webfetch (neither true nor false)",
    ),
    one(
        "allows parts of a tool",
        "tools: Bash(git diff:*), Bash(npm test:*), Read(./src/**), Bash(echo $(date))",
        agent("Bash(git diff:*)", "Bash(npm test:*)", "Read(./src/**)"),
        "4 tools: left out: Bash(echo $(date)) (a pattern cannot have parentheses)",
    ),
    one(
        "names tools that are gone",
        "tools: MultiEdit, LS, NotebookRead, KillShell, BashOutput, TodoWrite",
        agent("Edit", "Glob", "Read", *TASK_LIST),
        "4 tools: has other names here: MultiEdit is Edit; LS is Glob; NotebookRead is Read; "
        "TodoWrite is TaskCreate, TaskGet, TaskList and TaskUpdate",
        "4 tools: left out: KillShell and BashOutput (not for an agent in a container)",
    ),
    one(
        "names tools of MCP servers",
        "tools: Read, mcp__context7__*, mcp__docs__search",
        agent("Read"),
        "4 tools: left out: mcp__context7__* and mcp__docs__search (of MCP servers, which",
    ),
    one(
        "would run other agents",
        "tools: Read, Task, Agent(team:planner), SendMessage, TaskUpdate, Workflow(x:y)",
        agent("Read", "TaskUpdate"),
        "4 tools: left out: Task and Agent(team:planner) (for running other agents, which this",
        "4 tools: left out: SendMessage and Workflow(x:y) (not for an agent in a container)",
    ),
    one(
        "reaches the web",
        "tools: WebSearch, WebFetch",
        agent("WebSearch"),
        "4 tools: left out: WebFetch (for fetching from hosts, and this file cannot open a",
    ),
    one(
        "asks its user",
        "tools: Read, AskUserQuestion",
        agent("Read", ask={"whom": "user"}),
        "4 tools: has other names here: AskUserQuestion is ask_parent, `ask: user`",
    ),
    one(
        "misspells a tool",
        "tools: Raed, Grep, frobnicate",
        agent("Grep"),
        "4 tools: left out: Raed - did you mean Read? and frobnicate (no tool is known by that",
    ),
    one(
        "is written in a third dialect",
        "tools: view_file, replace_file_content, run_command, grep_search\nmodel: flash",
        agent("Read", "Edit", "Bash", "Glob", "Grep", model="flash"),
        "4 tools: has other names here: view_file is Read; replace_file_content is Edit; "
        "run_command is Bash; grep_search is Glob and Grep",
        "5 model: 'flash' is no model of Claude's that is known; it is asked for as it is",
    ),
    one(
        "says what it may not use",
        "disallowedTools: Write, Edit, NotebookEdit",
        agent(*LOOKING),
        "1 : names no tools, which is every tool in Claude Code; here it may use Bash, Glob, Grep "
        "and Read, on a read-only workspace and without network",
    ),
    one(
        "denies parts of a tool",
        "tools: Bash, Read, Write\ndisallowedTools:\n  - Bash(git push:*)\n  - Write\n  - Wirte",
        agent("Bash", "Read", deny=["Bash(git push:*)"]),
        "5 disallowedTools: denies nothing: Wirte - did you mean Write? (no tool is known so)",
    ),
    one(
        "denies what no rule can say",
        "tools: Bash, Read\ndisallowedTools: Bash(echo $(date))",
        agent("Read"),
        "5 disallowedTools: denies all of Bash: a pattern cannot have parentheses",
    ),
    one(
        "borrows a field of skills",
        "allowed-tools: Read",
        agent("Read"),
        "4 allowed-tools: is read as `tools`, which agents have in its place",
    ),
    one(
        "puts a number where tools are",
        "tools: 3",
        agent(),
        "4 tools: must be names of tools, found the number 3; it allows nothing",
    ),
)

FIELDS = (
    one("works with a model", "tools: Read\nmodel: opus", agent("Read", model="opus")),
    one("inherits its model", "tools: Read\nmodel: inherit", agent("Read")),
    one(
        "names a model in full",
        "tools: Read\nmodel: claude-opus-4-1-20250805",
        agent("Read", model="claude-opus-4-1-20250805"),
    ),
    one(
        "wants a model of others",
        "tools: Read\nmodel: gpt-5",
        agent("Read", model="gpt-5"),
        "5 model: 'gpt-5' is no model of Claude's that is known; it is asked for as it is, as",
    ),
    one("plans only", "permissionMode: plan\ntools: Read, Edit, Bash", agent("Read", "Bash")),
    one(
        "asks before it acts",
        "tools: Read\npermissionMode: default",
        agent("Read"),
        "5 permissionMode: default asks before it acts; here nothing is asked, and the container",
    ),
    one("asks nothing", "tools: Read\npermissionMode: bypassPermissions", agent("Read")),
    one(
        "has a mode that is none",
        "tools: Read\npermissionMode: yolo",
        agent("Read"),
        "5 permissionMode: found 'yolo', which is no mode; nothing is asked here",
    ),
    one("bounds its turns", "tools: Read\nmaxTurns: 12", agent("Read", max_turns=12)),
    one(
        "bounds its turns far away",
        "tools: Read\nmaxTurns: 5000",
        agent("Read", max_turns=1000),
        "5 maxTurns: 5000 is more than there can be here; it is 1000",
    ),
    one(
        "bounds its turns in words",
        "tools: Read\nmaxTurns: many",
        agent("Read"),
        "5 maxTurns: found 'many'; it must be a whole number from 1 on",
    ),
    one(
        "has a memory",
        "tools: Read\nmemory: project",
        agent("Read"),
        "5 memory: 'project' keeps notes for later calls in Claude Code; here only agents with",
    ),
    one(
        "runs in the background, on a worktree",
        "tools: Read\nbackground: true\nisolation: worktree",
        agent("Read", workspace={"mode": "copy"}),
        "5 background: callers decide here: a run goes on in the background if its caller does",
    ),
    one(
        "runs elsewhere",
        "tools: Read\nisolation: remote\nbackground: false",
        agent("Read"),
        "5 isolation: found 'remote'; every agent has a container of its own here",
    ),
    one(
        "loads skills",
        "tools: Read\nskills: pdf, charts",
        agent("Read"),
        "5 skills: not loaded: pdf and charts (write what the agent needs into its prompt)",
    ),
    one(
        "names MCP servers",
        "tools: Read\nmcpServers:\n  - github\n  - {db: {command: npx, env: {TOKEN: hunter2}}}",
        agent("Read"),
        "5 mcpServers: not started: github and db (MCP servers are started by an agent.md only)",
    ),
    one(
        "has hooks",
        "tools: Read\nhooks: {PreToolUse: [{matcher: Bash, hooks: [{command: ./x.sh}]}]}",
        agent("Read"),
        "5 hooks: are never run: they are commands for your machine, and no agent starts any",
    ),
    one(
        "has fields of newer versions",
        "tools: Read\neffort: high\ninitialPrompt: Begin.\nomitClaudeMd: true\n"
        "autoCompactWindow: 9000\nobserver: b\nobserverMessage: Look.\nobserveSubagents: true",
        agent("Read"),
        "5 effort: is not set here; the model works as hard as it does by itself",
        "6 initialPrompt: is not sent; the first message here is the task that the caller gives",
        "8 autoCompactWindow: is not set here; the agent's CLI decides",
        "9 observer: no other agent watches a run here; `orchestrator logs RUN -f` shows it",
        "10 observerMessage: no other agent watches a run here",
        "11 observeSubagents: no other agent watches a run here",
    ),
    one(
        "is decorated",
        "tools: Read\ncolor: red\ncategory: x\nemoji: 🦊\nvibe: calm\nauthor: me\nuser: |\n  y",
        agent("Read"),
        "1 : has fields that mean nothing here: color, category, emoji, vibe, author and user",
    ),
    one(
        "misspells a field",
        "tools: Read\ndisalowedTools: Bash",
        agent("Read"),
        "5 disalowedTools: is no field that is known; did you mean 'disallowedTools'?",
    ),
    one(
        "wants what only agent.md can give",
        "tools: Read\nnetwork: open\nsecrets: [{name: x}]\nworkspace: rw\nsession: true\n"
        "allowed_callers: [default]\nimage: evil\nenv: {A: '${HOME}'}\n"
        "permissions: {allow: [Bash]}",
        agent("Read"),
        *(
            f"{line} {field}: counts only in an agent.md, which `orchestrator import` writes"
            for line, field in enumerate(
                (
                    *("network", "secrets", "workspace", "session", "allowed_callers", "image"),
                    *("env", "permissions"),
                ),
                start=5,
            )
        ),
    ),
    one(
        "leaves fields empty, and comments",
        "# what it may use\ntools: Read  # only\nmodel: sonnet  # quick\nmcpServers:\nhooks:\n"
        "skills:",
        agent("Read"),
    ),
    one("may not write", "readonly: true\ntools: Read, Write", agent("Read")),
)

NAMES = (
    headed(
        "has a name with a space",
        "name: Code Reviewer\ndescription: Does a.",
        agent("Read", name="code-reviewer"),
        "2 name: 'Code Reviewer' is no name here; it is called code-reviewer",
    ),
    headed(
        "is called otherwise than its file",
        "name: Other_Name\ndescription: Does a.",
        agent("Read", name="Other_Name"),
    ),
    headed(
        "is not English",
        "name: 代码审查\ndescription: 审查代码。",
        agent("Read", description="审查代码。"),
        "2 name: '代码审查' is no name here; it is called a",
    ),
    headed(
        "has a number for a name",
        "name: 404\ndescription: Does a.",
        agent("Read", name="404"),
    ),
    headed(
        "has no name",
        "description: Does a.",
        agent("Read"),
        "1 name: is missing, so Claude Code does not load it; it is called a, by its file",
    ),
    headed(
        "has no description",
        "name: a",
        None,
        "1 description: is missing; write `description: …`, for what it is to be used",
    ),
    headed(
        "has a list for a description",
        "name: a\ndescription: [x]",
        None,
        "3 description: must be text, found a list",
    ),
    headed(
        "is a page with fields",
        "title: Agents\nlayout: page",
        None,
        "1 : has neither name nor description, so it is no agent",
    ),
    ForeignFile(
        "is a page",
        CLAUDE,
        "# Agents\n\n---\nname: a\n---\n",
        None,
        ("1 : does not begin with fields, so it is no agent",),
    ),
    ForeignFile("is a README", ".claude/agents/README.md", "# Agents\n", None),
    ForeignFile(
        "never ends its fields",
        CLAUDE,
        "---\nname: a\ndescription: Does a.\n",
        None,
        ("1 : the fields that begin here never end; add a line --- below the last one",),
    ),
    ForeignFile(
        "begins with an empty line",
        CLAUDE,
        "\n" + claude("tools: Read"),
        None,
        ("1 : begins with an empty line; remove it, so that --- is the first",),
    ),
    ForeignFile(
        "holds a NUL", CLAUDE, claude("tools: \0"), None, ("4 : holds a NUL character; remove it",)
    ),
)

YAML = (
    described(
        "has a colon in its description",
        "description: Use it when: a is due",
        "Use it when: a is due",
        f"3 description: {QUOTED}",
    ),
    described(
        "begins its description with a star",
        "description: *Always* use it & more",
        "*Always* use it & more",
        f"3 description: {QUOTED}",
    ),
    described(
        "begins its description with a brace",
        "description: {a} is done by it",
        "{a} is done by it",
        f"3 description: {QUOTED}",
    ),
    described(
        "begins its description with a bracket",
        "description: [WIP] does a",
        "[WIP] does a",
        f"3 description: {QUOTED}",
    ),
    described(
        "begins its description with a backtick",
        'description: `a`: "quoted" \\ slashed',
        '`a`: "quoted" \\ slashed',
        f"3 description: {QUOTED}",
    ),
    described(
        "writes \\n for a new line",
        "description: First: one\\n\\nExamples:\\n- two",
        "First: one\\n\\nExamples:\\n- two",
        f"3 description: {QUOTED}",
    ),
    described("folds its description", "description: >\n  Does\n  a.", "Does a."),
    described("blocks its description", "description: |\n  One: a\n  Two: b", "One: a\nTwo: b"),
    described(
        "has tabs",
        "description:\tDoes a: it",
        "Does a: it",
        f"3 description: {QUOTED}",
    ),
    described(
        "says a thing twice",
        "description: Once.\ndescription: Twice.",
        "Twice.",
        "4 description: is given twice; the last one counts, as in Claude Code; remove one of them",
    ),
    described("quotes its description", "description: 'Does: a'", "Does: a"),
    described(
        "has examples in quotes",
        'description: "Use it.\\n\\n<example>\\nuser: \\"x\\"\\n</example>"',
        'Use it.\n\n<example>\nuser: "x"\n</example>',
    ),
    described(
        "goes on without indentation",
        """
        description: Use it to do a. Examples:

        <example>
        Context: a is due
        Model: none
        user: "Do a"
        assistant: "I use it: now"
        </example>
        """,
        "Use it to do a. Examples:\n\n<example>\nContext: a is due\nModel: none\n"
        'user: "Do a"\nassistant: "I use it: now"\n</example>',
        f"3 description: {RESCUED}",
    ),
    described(
        "has examples that look like fields",
        """
        description: Use it to do a. Examples:\\n<example>\\nContext: a is due
        user: "Do a"\\nassistant: "I use it: now"\\n
        user: "Again"\\n</example>
        color: red
        """,
        "Use it to do a. Examples:\\n<example>\\nContext: a is due\n"
        'user: "Do a"\\nassistant: "I use it: now"\\n\nuser: "Again"\\n</example>',
        "1 : has fields that mean nothing here: color",
        "3 description: goes on in lines that look like fields; read as one text, up to the next",
    ),
    described(
        "never closes its quote",
        'description: "Use it always',
        "Use it always",
        f"3 description: {RESCUED}",
    ),
    described(
        "has a line without a field",
        "description: Does a.\nAnd then b.",
        "Does a.\nAnd then b.",
        f"3 description: {RESCUED}",
    ),
    headed(
        "is right where another line is wrong",
        "name: a\ndescription: |\n  One: a\ncolor: *red\nvibe: [a, b]",
        agent("Read", description="One: a"),
        "1 : has fields that mean nothing here: color and vibe",
        f"5 color: {QUOTED}",
    ),
    headed(
        "is anchored",
        "name: &x a\ndescription: Does a.",
        agent("Read", name="x-a"),
        f"2 name: {QUOTED}",
        "2 name: '&x a' is no name here; it is called x-a",
    ),
    ForeignFile(
        "is no YAML at all",
        CLAUDE,
        "---\nname: a\n  b: [\n---\nDo a.\n",
        None,
        ("3 : is not ",),
    ),
)

OTHERS = (
    copilot(
        "uses the aliases of Copilot",
        "tools: [read, edit, search, execute, web, todo, agent]",
        agent("Read", "Edit", "Write", "Glob", "Grep", "Bash", "WebSearch", *TASK_LIST),
        "4 tools: has other names here: read is Read; edit is Edit and Write; search is Glob and "
        "Grep; execute is Bash; web is WebFetch and WebSearch; todo is TaskCreate, TaskGet,",
        "4 tools: left out: agent (for running other agents",
        "4 tools: left out: WebFetch (for fetching",
    ),
    copilot(
        "uses the names of VS Code",
        "tools: ['codebase', 'edit/editFiles', 'runCommands', 'read/problems', 'vscodeAPI', "
        "'github/*', 'io.x/docs']",
        agent("Glob", "Grep", "Edit", "Write", "Bash"),
        "4 tools: has other names here: codebase is Glob and Grep; edit/editFiles is Edit and "
        "Write; runCommands is Bash",
        "4 tools: left out: github/* and io.x/docs (of MCP servers",
        "4 tools: left out: read/problems and vscodeAPI (not for an agent in a container)",
    ),
    copilot(
        "names no tools in Copilot",
        "target: vscode\nargument-hint: what\nuser-invocable: true\ninfer: false\nmode: agent",
        agent(*LOCAL),
        "1 : has fields that mean nothing here: target, argument-hint, user-invocable, infer and",
        "1 : names no tools, which is every tool in Copilot; here it may use Bash,",
    ),
    copilot(
        "wants a model by its shown name",
        "tools: []\nmodel: Claude Sonnet 4.5 (copilot)",
        agent(),
        "5 model: 'Claude Sonnet 4.5 (copilot)' is sonnet here",
    ),
    copilot(
        "wants a model as Copilot writes it",
        "tools: []\nmodel: claude-opus-4.7",
        agent(model="opus"),
        "5 model: 'claude-opus-4.7' is opus here",
    ),
    copilot(
        "wants one of several models",
        "tools: []\nmodel: ['GPT-5', 'Claude Opus 4']",
        agent(),
        "5 model: 'GPT-5' is no model of Claude's; the default model is used",
    ),
    copilot(
        "starts servers and hands over",
        "tools: []\nmodel: 'GPT-4.1' | 'o3'\nmcp-servers: {db: {type: local, command: x}}\n"
        "handoffs: [{agent: b}]\nagents: [b]",
        agent(),
        f"5 model: {QUOTED}",
        "5 model: ''GPT-4.1' | 'o3'' is no model of Claude's; the default model is used",
        "6 mcp-servers: not started: db",
        "7 handoffs: left out (for running other agents, which this file cannot allow)",
        "8 agents: left out (for running other agents",
    ),
    ForeignFile(
        "is shown by another name in Copilot",
        ".github/agents/api-architect.md",
        claude("tools: read", "name: 'API Architect'\ndescription: Does a."),
        agent("Read", name="api-architect"),
        (
            "2 name: 'API Architect' is only shown; it is called api-architect here",
            "4 tools: has other names here: read is Read",
        ),
    ),
    openhands(
        "is for OpenHands",
        "tools: [file_editor, terminal]\nmax_iteration_per_run: 30\nmax_budget_per_run: 0.5\n"
        "permission_mode: always_confirm\nskills: [x]\nmcp_config: {db: {command: x}}\n"
        "condenser: {kind: none}\nprofile_store_dir: /x",
        agent(
            *("Read", "Edit", "Write", "Bash"),
            max_turns=30,
            max_budget_usd=0.5,
            approval={"*": "ask"},
        ),
        "4 tools: has other names here: file_editor is Read, Edit and Write; terminal is Bash",
        "8 skills: not loaded: x",
        "9 mcp_config: not started: db",
        "10 condenser: is not set here; the agent's CLI decides",
        "11 profile_store_dir: is not read; models are named in `model`",
    ),
    openhands("has no tools in OpenHands", "model: inherit", agent()),
    ForeignFile(
        "has neither name nor description in OpenHands",
        ".agents/agents/a.md",
        claude("tools: [grep]\npermission_mode: confirm_risky", "name:"),
        agent("Grep", description="The agent a."),
        (
            "1 description: is missing; a caller is told no more than the agent's name",
            "3 tools: has other names here: grep is Grep",
            "4 permission_mode: confirm_risky asks before it acts",
        ),
    ),
    persona(
        "is a persona",
        """\
        persona: |
          Do a.
        description: Does a.
        model: haiku
        """,
        agent(*LOOKING, model="haiku", workspace={"mode": "ro"}),
        "1 : names no tools, which is all that a read-only sandbox lets an agent do; here it may "
        "use Bash, Glob, Grep and Read, on a read-only workspace and without network",
    ),
    persona(
        "is a persona for another runner",
        "persona: Do a.\ndescription: Does: a.\nmodel: gpt-5-codex\nrunner: codex\n",
        agent(*LOOKING, description="Does: a.", model="gpt-5-codex", workspace={"mode": "ro"}),
        "1 : names no tools",
        f"2 description: {QUOTED}",
        "4 runner: counts only in an agent.md",
    ),
    persona("is no persona", "services: {}\n", None, "1 : has no persona, so it is no agent"),
    persona(
        "is an empty persona",
        "persona: ''\ndescription: Does a.\n",
        None,
        "1 persona: must be text: what the agent is told to be",
    ),
)

FILES = (*TOOLS, *FIELDS, *NAMES, *YAML, *OTHERS)
