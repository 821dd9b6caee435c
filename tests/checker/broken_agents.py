"""Files that authors write by mistake: name, text, and for each thing that is said its line."""

from __future__ import annotations

from textwrap import dedent
from typing import NamedTuple


class Case(NamedTuple):
    """One agent.md; `said` is all that is told of it, "LINE: field: message"."""

    name: str
    text: str
    said: tuple[str, ...]


def case(name: str, text: str, *said: str) -> Case:
    return Case(name, dedent(text).lstrip("\n"), said)


def fields(name: str, text: str, *said: str) -> Case:
    """The fields after a good name (line 2) and description (line 3): they begin on line 4."""
    head = "---\nname: mine\ndescription: Does something.\n"
    return Case(name, f"{head}{dedent(text).strip()}\n---\n\nYou do something.\n", said)


BUILT_IN = (
    "Agent, Bash, CronCreate, CronDelete, CronList, Edit, EnterWorktree, ExitWorktree, Glob, Grep, "
    "ListAgents, Monitor, NotebookEdit, Read, ReportFindings, ScheduleWakeup, SendMessage, Skill, "
    "TaskCreate, TaskGet, TaskList, TaskStop, TaskUpdate, WebFetch, WebSearch, Workflow, Write"
)

BROKEN = (
    # The file
    case(
        "an empty file",
        "",
        "1: must begin with a line ---, then fields such as `name: …`, then ---",
    ),
    case(
        "no front matter",
        "You review code.\n",
        "1: must begin with a line ---, then fields such as `name: …`, then ---",
    ),
    case(
        "front matter that never ends",
        """
        ---
        name: mine
        description: Does something.

        You do something.
        """,
        "1: the fields that begin here never end; add a line --- below the last one",
    ),
    case(
        "a list in the place of fields",
        """
        ---
        - name: mine
        ---
        """,
        "2: must have fields such as `name: mine` here, found a list",
    ),
    case(
        "no name and no description",
        """
        ---
        model: sonnet
        ---
        Go.
        """,
        "1: name: is missing; write `name: mine`, as the folder is called",
        "1: description: is missing; write `description: …`, a sentence or two for the caller that "
        "chooses an agent",
    ),
    case(
        "another name than the folder's",
        """
        ---
        name: yours
        description: Does something.
        ---
        Go.
        """,
        "2: name: found 'yours' in the folder 'mine'; make them the same",
    ),
    # YAML
    fields(
        "a colon in a text",
        "model: claude: sonnet",
        "4: is not valid YAML: mapping values are not allowed here (a text with "
        '": " in it needs quotes)',
    ),
    fields(
        "a tab",
        "permissions:\n\tallow: [Read]",
        "5: is not valid YAML: while scanning for the next token; found character '\\t' "
        "that cannot start any token (indent with spaces instead)",
    ),
    fields(
        "a star without quotes",
        "network:\n  allow:\n    - *.example.org",
        "6: is not valid YAML: while scanning an alias; expected alphabetic or numeric "
        "character, but found '.' (a text that begins with * needs quotes)",
    ),
    fields(
        "a field twice",
        "retries: 1\nmodel: opus\nretries: 2",
        "6: retries: is given twice, first on line 4; remove one of them",
    ),
    # Fields and their values
    fields(
        "a field misspelt",
        "max_turn: 5",
        "4: max_turn: unknown field; did you mean 'max_turns'?",
    ),
    fields(
        "a field inside misspelt",
        "network:\n  alow: [example.org]",
        "5: network.alow: unknown field; did you mean 'allow'?",
    ),
    fields(
        "the prompt as a field",
        "prompt: You do something.",
        "4: prompt: is not a field; the system prompt is the text below the last ---",
    ),
    fields(
        "a number in quotes",
        'timeout_ms: "30000"',
        "4: timeout_ms: must be a whole number of ms, found '30000'; remove the quotes",
    ),
    fields(
        "seconds where milliseconds are meant",
        "timeout_ms: 60",
        "4: timeout_ms: must be at least 1000 ms, found the number 60",
    ),
    fields(
        "yes for true",
        "session: yes",
        "4: session: found 'yes'; allowed: true, false, {expire_after: 7d}",
    ),
    fields(
        "a text for a list",
        "allowed_callers: main",
        "4: allowed_callers: must be a list, found 'main'; write [main]",
    ),
    fields(
        "a word that is not among the allowed ones",
        "output_format: jsn",
        "4: output_format: found 'jsn'; allowed: text, json; did you mean 'json'?",
    ),
    fields(
        "a size without a unit",
        "resources:\n  memory: 2048",
        '5: resources.memory: found the number 2048; allowed: whole MiB, such as "512m" or "2g"',
    ),
    fields(
        "a schema that is none",
        "output_schema:\n  type: objekt",
        "5: output_schema.type: 'objekt' is not valid under any of the given schemas",
    ),
    fields(
        "a schema file that is not there",
        "output_schema: answer.json",
        "4: output_schema: 'answer.json' cannot be read: No such file or directory",
    ),
    fields(
        "text with a schema",
        "output_format: text\noutput_schema: {type: object}",
        "4: output_format: is text, but an output_schema describes json; remove one of them",
    ),
    fields(
        "a memory without a session",
        "memory: rw",
        "4: memory: is rw, but only a session has a memory; add `session: true`",
    ),
    fields(
        "a secret for nothing",
        "secrets:\n  - name: token",
        "5: secrets[0].hosts: is missing: name the hosts that it is for, or write `expose: env` to "
        "let the agent have it",
    ),
    # Tools
    fields(
        "a tool misspelt",
        "permissions:\n  allow:\n    - Read\n    - Raed",
        "7: permissions.allow[1]: claude 2.1.325 has no tool 'Raed'; did you mean 'Read'?",
    ),
    fields(
        "a tool misspelt, in Claude Code's way",
        "tools: Read, Gerp",
        "4: permissions.allow[1]: claude 2.1.325 has no tool 'Gerp'; did you mean 'Grep'?",
    ),
    fields(
        "a tool in small letters",
        "permissions:\n  allow: [bash]",
        "5: permissions.allow[0]: claude 2.1.325 has no tool 'bash'; did you mean 'Bash'?",
    ),
    fields(
        "a tool denied that does not exist: nothing would be denied",
        "permissions:\n  allow: [Bash]\n  deny: [Terminal]",
        f"6: permissions.deny[0]: claude 2.1.325 has no tool 'Terminal'; it has {BUILT_IN}",
    ),
    fields(
        "a rule with a parenthesis open",
        'permissions:\n  allow: ["Bash(curl"]',
        "5: permissions.allow[0]: 'Bash(curl' must be the name of a tool, then perhaps a pattern "
        'without parentheses in it, such as "Read", "Bash(curl:*)" or "mcp__github"',
    ),
    fields(
        "tools of a server that is not there",
        "permissions:\n  allow: [Read, mcp__tracker]",
        "5: permissions.allow[1]: mcp_servers has no 'tracker' (the agent has none); add it there, "
        "or remove this rule",
    ),
    fields(
        "tools of a server misspelt",
        "mcp_servers:\n  - {name: tracker, command: tracker-mcp}\npermissions:\n"
        "  allow: [mcp__traker__list]",
        "7: permissions.allow[0]: mcp_servers has no 'traker'; did you mean 'mcp__tracker'?",
    ),
    fields(
        "a server's tool with one line too few",
        "permissions:\n  allow: [mcp_tracker_list]",
        "5: permissions.allow[0]: 'mcp_tracker_list' is no tool; those of MCP servers are "
        "mcp__SERVER__TOOL",
    ),
    fields(
        "approval of a tool that does not exist: nothing would be asked",
        "permissions:\n  allow: [Bash]\napproval:\n  Bsah: ask",
        "7: approval.Bsah: claude 2.1.325 has no tool 'Bsah'; did you mean 'Bash'?",
    ),
    fields(
        "the tools of the caller without a way to it",
        "permissions:\n  allow: [mcp__parent]",
        "5: permissions.allow[0]: the agent cannot reach its caller; write `ask: parent` for "
        "ask_parent, or `subagents` for run_subagent, and no rule is needed",
    ),
    # Network
    fields(
        "a URL for a host",
        "network:\n  allow: [https://api.example.org/v1]",
        "5: network.allow[0]: 'https://api.example.org/v1' is a URL; write the host alone: "
        '"api.example.org"',
    ),
    fields(
        "this machine",
        'network:\n  allow: ["localhost:18080"]',
        "5: network.allow[0]: 'localhost:18080' is this machine, and private addresses are closed; "
        'write `allow_private: ["localhost:18080"]` under network',
    ),
    fields(
        "an address",
        'network:\n  allow: ["10.0.0.5:8080"]',
        "5: network.allow[0]: '10.0.0.5:8080' is an address, and names are wanted here; write it "
        "under allow_private",
    ),
    fields(
        "every host",
        'network:\n  allow: ["*"]',
        "5: network.allow[0]: '*' allows every host; if that is meant, write `network: open`",
    ),
    fields(
        "no host",
        "network:\n  deny: [example.org]",
        "4: network: allows nothing; name hosts in allow, or write `network: none`",
    ),
    fields(
        "ports that are none",
        'network:\n  allow: ["example.org:http"]',
        "5: network.allow[0]: 'example.org:http' is neither a host, such as \"api.github.com\", "
        '"*.example.org" or "example.org:8443", nor an address in its usual form, such as '
        '"10.0.0.0/8" or "[fd00::1]"',
    ),
    fields(
        "a secret for this machine",
        "secrets:\n  - name: token\n    hosts: [localhost]\n    paths: [/x]",
        "6: secrets[0].hosts[0]: 'localhost' is this machine, and private addresses are closed; "
        'write `allow_private: ["localhost"]` under network',
    ),
    # What it does not have alone
    fields(
        "agents that are not there",
        "subagents:\n  - nosuch",
        "5: subagents[0]: there is no agent 'nosuch'; there are: other",
    ),
    fields(
        "an agent misspelt",
        "subagents: [othre]",
        "4: subagents[0]: there is no agent 'othre'; did you mean 'other'?",
    ),
    fields(
        "an agent that does not allow it",
        "subagents: [other]",
        "4: subagents[0]: other does not allow it; add mine to allowed_callers of other's "
        "agent.md, or remove it here",
    ),
    fields(
        "a variable of the orchestrator's",
        "env:\n  TZ: Europe/Berlin\n  PATH: /opt/bin",
        "6: env.PATH: is set by the orchestrator itself; remove it",
    ),
    fields(
        "a proxy of its own beside a network",
        "network: open\nenv:\n  HTTPS_PROXY: http://proxy.example.org",
        "6: env.HTTPS_PROXY: is set by the orchestrator itself; remove it",
    ),
    fields(
        "a secret as a variable of the orchestrator's",
        "secrets:\n  - name: home\n    expose: env",
        "5: secrets[0].variable: would be the variable HOME, which the orchestrator sets itself; "
        "write `variable: OTHER`",
    ),
    fields(
        "a server called as ours is",
        "ask: parent\nmcp_servers:\n  - name: parent\n    command: tracker-mcp",
        "6: mcp_servers[0].name: is 'parent', as the orchestrator's own is called; write another "
        "name",
    ),
    fields(
        "a model that is left open",
        "model: best",
        "4: model: 'best' leaves the model to the CLI, and we let an agent have one; "
        "write sonnet, opus, haiku, fable, or a model's full name",
    ),
)

DOUBTFUL = (
    fields(
        "a tool that the CLI once had",
        "permissions:\n  allow: [Read, MultiEdit]",
        "5: permissions.allow[1]: claude 2.1.325 has no MultiEdit for agents; write Edit",
    ),
    fields(
        "another one, in Claude Code's way",
        "tools: Read, TodoWrite",
        "4: permissions.allow[1]: claude 2.1.325 has no TodoWrite for agents; write TaskCreate, "
        "TaskUpdate, TaskList and TaskGet",
    ),
    fields(
        "a tool of a person's window",
        "tools: AskUserQuestion",
        "4: permissions.allow[0]: claude 2.1.325 has no AskUserQuestion for agents; remove it, and "
        "let the agent ask its caller with `ask: parent`",
    ),
    fields(
        "a tool of another program",
        "permissions:\n  allow: [Kubernetes]",
        f"5: permissions.allow[0]: claude 2.1.325 has no tool 'Kubernetes'; it has {BUILT_IN}",
    ),
    fields(
        "fetching without a network",
        "permissions:\n  allow: [WebFetch]",
        "5: permissions.allow[0]: WebFetch reaches nothing: the agent has no network; add "
        "`network: {allow: [api.example.org]}` with the hosts it needs, or remove it",
    ),
    fields(
        "the example of a first day: curl, wget and npx without a network",
        """
        permissions:
          allow: ["Bash(curl:*)", "Bash(wget *)"]
        mcp_servers:
          - name: brave-search
            command: npx
            args: ["-y", "a-server"]
        """,
        "5: permissions.allow[0]: curl reaches nothing: the agent has no network; add "
        "`network: {allow: [api.example.org]}` with the hosts it needs, or remove it",
        "5: permissions.allow[1]: wget reaches nothing: the agent has no network; add "
        "`network: {allow: [api.example.org]}` with the hosts it needs, or remove it",
        "8: mcp_servers[0].command: npx downloads the server first, and the agent has no network; "
        "have the server in an image (`image`) or in the agent's folder (`files`)",
        "8: mcp_servers[0].command: the agent image has no npx; build one on it that has "
        "(images/README.md says how), and name it under `image`",
    ),
    fields(
        "approval of a tool that is not allowed",
        'permissions:\n  allow: [Read]\napproval:\n  "Bash(git push:*)": ask',
        "7: approval.Bash(git push:*): Bash is not under permissions.allow, and yet the agent can "
        "use it when a call is approved; add Bash there, or remove this",
    ),
    fields(
        "a verdict that changes nothing",
        "permissions:\n  allow: [Read]\napproval:\n  Write: deny",
        "7: approval.Write: Write is not under permissions.allow, so this changes nothing; add "
        "Write there, or remove this",
    ),
    fields(
        "a name of a private network",
        'network:\n  allow: [nas.local, "vm:18080"]',
        "5: network.allow[0]: 'nas.local' is a name of a private network, and private addresses "
        'are closed; write `allow_private: ["nas.local"]` under network',
        "5: network.allow[1]: 'vm:18080' is a name of a private network, and private addresses are "
        'closed; write `allow_private: ["vm:18080"]` under network',
    ),
    fields(
        "a host that is denied as well",
        'network:\n  allow: [api.example.org]\n  deny: ["*.example.org"]',
        "5: network.allow[0]: 'api.example.org' is denied by '*.example.org' under network.deny; "
        "remove one",
    ),
    fields(
        "a rule that the runner lets some commands past",
        "model: gemini-2.5-pro\nrunner: gemini\npermissions: {allow: [Bash]}\n"
        "approval: {Bash: ask}\nask: parent",
        "5: runner: gemini 0.61.0 runs commands that it takes for harmless, such as echo and ls, "
        "without asking, so Bash does not hold for them; name another runner if it has to",
    ),
    fields(
        "a model of others that is not known",
        "model: gpt-99-ultimate\nrunner: codex\nmodels: {codex: gpt-5.55}",
        "4: model: no price is known for 'gpt-99-ultimate', so runs are billed as the dearest "
        "model that it could be; write sonnet, opus, haiku, fable, or a model's full name",
        "6: models.codex: no price is known for 'gpt-5.55', so runs are billed as the dearest "
        "model that it could be; did you mean 'gpt-5.5'?",
    ),
    fields(
        "a model that is not there yet",
        "model: claude-sonnet-4-9",
        "4: model: no price is known for 'claude-sonnet-4-9', so runs are billed as the dearest "
        "model that it could be; did you mean 'claude-sonnet-4-6'?",
    ),
    fields(
        "a caller misspelt",
        "allowed_callers:\n  - mainn",
        "5: allowed_callers[0]: no caller is known as 'mainn'; did you mean 'main'?",
    ),
    fields(
        "no caller at all",
        "allowed_callers: []",
        "4: allowed_callers: is empty, so no caller may run it; write `allowed_callers: [main]`",
    ),
    fields(
        "an agent that is broken itself",
        "subagents: [bad]",
        "4: subagents[0]: bad cannot be used as it is; mend its agent.md",
    ),
    fields(
        "spares that cannot be",
        "warm: 2\nsecrets:\n  - {name: token, expose: env}",
        "4: warm: does nothing: a secret enters this agent's container, so none can wait; remove "
        "it, or give the secret hosts in the place of `expose`",
    ),
    case(
        "no prompt",
        """
        ---
        name: mine
        description: Does something.
        ---
        """,
        "4: prompt: is empty: below this line, say what the agent is, how it works and what it "
        "answers; otherwise the CLI's own prompt counts",
    ),
)

GOOD = (
    fields(
        "a network through an operator's range",
        "network:\n  allow: [nas.local]\n  allow_private: [10.0.0.0/8]",
    ),
    fields("private names that are said to be", 'network: {allow: ["vm:1"], allow_private: [vm]}'),
    fields(
        "curl to where a secret is added",
        CURL_WITH_SECRET := """
        permissions: {allow: ["Bash(curl:*)"]}
        secrets:
          - {name: token, hosts: [api.example.org], paths: ["/x/**"]}
        """,
    ),
    fields("tools of the CLI, also by other names", "tools: Task, KillShell, Read, Agent"),
    fields(
        "tools of servers",
        "mcp_servers: [{name: my.srv, command: a-server}]\n"
        "permissions: {allow: [mcp__my_srv__get, mcp__my_srv__list_*]}\n"
        "approval: {mcp__my_srv__get: ask}",
    ),
    fields("searching needs no network", "tools: WebSearch, Bash"),
    fields(
        "models by alias, date and platform", "model: us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    ),
    fields("approval of all", 'tools: Bash\napproval: {"*": ask}'),
)
