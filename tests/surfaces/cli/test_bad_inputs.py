"""What people type wrong, or have set up wrong: each is told in a sentence, with its exit code."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from orchestrator.containers.owner import Owner
from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.settings import SOURCES
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from orchestrator.surfaces.cli.main import main

USAGE, AUTHOR, OPERATOR, CALLER, ENGINE = 2, 3, 4, 5, 6

RAW = re.compile(
    r"Traceback|Input should|should have|[Vv]alidation ?[Ee]rror|pydantic|Value error|\[Errno|"
    r"sqlite3|docker\.errors|HTTPConnection|urllib3|Usage:|Invalid value|No such (command|option)|"
    r"Missing (argument|option)|object at 0x|<class|NoneType|Error:"
)
"""What only a library, or a mistake of ours, would say."""


class Bad(NamedTuple):
    """A command line, where it is typed, and what comes of it."""

    line: str
    code: int
    said: str
    variable: str = ""
    """NAME=VALUE in the environment."""
    files: tuple[tuple[str, str], ...] = ()
    """Written before; a text that ends with / is a folder."""


BAD: tuple[Bad, ...] = (
    # A command line that cannot be understood
    Bad("frobnicate", USAGE, "there is no command 'frobnicate'; `orchestrator -h` tells more"),
    Bad("runn echo hi", USAGE, "there is no command 'runn'; did you mean run or runs?"),
    Bad("run", USAGE, "AGENT is missing: orchestrator run [OPTIONS] AGENT PROMPT"),
    Bad("run echo", USAGE, "PROMPT is missing: orchestrator run [OPTIONS] AGENT PROMPT"),
    Bad("run echo say hello", USAGE, "hello is too much: orchestrator run [OPTIONS] AGENT"),
    Bad("run echo hi --timeout soon", USAGE, "--timeout takes a number; `orchestrator run -h`"),
    Bad("run echo hi --timeout", USAGE, "--timeout takes a value after it"),
    Bad("run echo hi --tiemout 3", USAGE, "there is no option --tiemout; did you mean --timeout?"),
    Bad("run echo hi -x", USAGE, "there is no option -x"),
    Bad("runs --limit many", USAGE, "--limit takes a whole number, 1 or more"),
    Bad("runs --limit 0", USAGE, "--limit takes a whole number, 1 or more"),
    Bad("runs --limit 1.5", USAGE, "--limit takes a whole number, 1 or more"),
    Bad("runs --watch", USAGE, "--watch needs a terminal"),
    Bad("pending --watch", USAGE, "--watch needs a terminal"),
    Bad("pending --notify", USAGE, "--notify goes with --watch"),
    Bad("runs --watch=yes", USAGE, "--watch takes no value"),
    Bad("runs --status done", USAGE, "there is no status 'done'; there are pending, running"),
    Bad("runs prune --older-than soon", USAGE, "'soon' is no time; write 30d, 12h, 2w or 90min"),
    Bad("runs prune --keep -1", USAGE, "--keep takes a whole number, 0 or more"),
    Bad("runs purge", USAGE, "there is no command 'purge'"),
    Bad("wait", USAGE, "RUN is missing: orchestrator wait [OPTIONS] RUN..."),
    Bad("wait r1 --timeout -1", USAGE, "--timeout takes a number, 0 or more"),
    Bad("wait r1 --timeout nan", USAGE, "--timeout takes a number, 0 or more"),
    Bad("audit --act fly", USAGE, "there is no act 'fly'; there are "),
    Bad("audit --since yesterday", USAGE, "'yesterday' is no time"),
    Bad("audit -f --json", USAGE, "--follow goes with --jsonl"),
    Bad("approve r2 c1 c2 --input {}", USAGE, "--input goes with exactly one CALL"),
    Bad("approve r2 c1 --input {", USAGE, "--input is no JSON"),
    Bad("approve r2 c1 --input []", USAGE, "--input must be a JSON object"),
    Bad("trust --yes --revoke", USAGE, "take one of --yes, --list and --revoke"),
    Bad(
        "trust . --agents-dir agents", USAGE, "name the project with DIR or with --agents-dir, not"
    ),
    Bad("cost --by colour", USAGE, "--by takes one of agent, day, project, model"),
    Bad("cost --since last-week", USAGE, "'last-week' is no time"),
    Bad("approve --all", USAGE, "--all goes with a RUN"),
    Bad("logs r1 -fx", USAGE, "there is no option -x"),
    Bad("agents lst", USAGE, "there is no command 'lst'; did you mean list?"),
    Bad("--frob", USAGE, "there is no option --frob"),
    # What the caller has to change
    Bad("run ecko hi", CALLER, "no agent 'ecko'"),
    Bad("run ../echo hi", CALLER, "no agent '../echo'"),
    Bad("run echo ''", CALLER, "PROMPT must not be empty"),
    Bad("run echo hi --timeout 0", CALLER, "--timeout must be more than 0"),
    Bad("run echo hi --timeout -5", CALLER, "--timeout must be more than 0"),
    Bad("run echo hi --session 'a b'", CALLER, "--session"),
    Bad("run echo hi --session side", CALLER, "agent 'echo' has no sessions"),
    Bad("run echo hi --caller stranger", CALLER, "does not allow caller 'stranger'"),
    Bad("run echo hi --workspace /etc", CALLER, "/etc belongs to the system"),
    Bad("run echo hi --workspace nowhere", CALLER, "nowhere"),
    Bad("plan ecko", CALLER, "did you mean 'echo'?"),
    Bad("agents show ecko", CALLER, "did you mean 'echo'?"),
    Bad("show r9", CALLER, "there is no run 'r9'; `orchestrator runs` lists them"),
    Bad("show r1 --patch", CALLER, "r1 has changed no file"),
    Bad("logs ../../etc", CALLER, "there is no run '../../etc'"),
    Bad("apply r2", CALLER, "r2 has not ended"),
    Bad("cancel r9", CALLER, "there is no run 'r9'"),
    Bad("wait r1 r9", CALLER, "there is no run 'r9'"),
    Bad("resume r1 again", CALLER, "r1 has ended and its container is gone"),
    Bad("reply r2 m9 blue", CALLER, "r2 has asked no question 'm9'"),
    Bad("reply r2 m1 ' '", CALLER, "the answer is empty"),
    Bad("approve r2 c9", CALLER, "r2 has no tool call c9"),
    Bad("approve", CALLER, "several tool calls wait: r2 c1, r2 c2; name the calls"),
    Bad("approve r2", CALLER, "several tool calls wait: r2 c1, r2 c2; name the calls"),
    Bad("approve zzz", CALLER, "there is no run 'zzz'"),
    Bad("reject r1 c1", CALLER, "r1 has no tool call c1"),
    Bad("logs r", CALLER, "'r' is the beginning of several runs: r2, r1; write more of it"),
    Bad("show ''", CALLER, "there is no run ''"),
    Bad("sessions show nosuch", CALLER, "there is no session 'nosuch/main/default'; known: none"),
    # What the agent's author has to change
    Bad(
        "agents check",
        AUTHOR,
        "agent.md:1: ",
        files=(("agents/broken/agent.md", "---\nname: x\n"),),
    ),
    Bad("run broken hi", AUTHOR, "broken", files=(("agents/broken/agent.md", "no fields\n"),)),
    # What the operator has to change
    Bad("run echo hi", OPERATOR, "it is not a directory", "ORCHESTRATOR_STATE_DIR=/etc/passwd"),
    Bad("doctor", OPERATOR, "it is not a directory", "ORCHESTRATOR_STATE_DIR=/etc/passwd"),
    Bad("serve", OPERATOR, "it is not a directory", "ORCHESTRATOR_STATE_DIR=/etc/passwd"),
    Bad("runs", OPERATOR, "a file is where a directory", "ORCHESTRATOR_STATE_DIR=/etc/passwd/a/b"),
    Bad("runs", OPERATOR, "Check free space and permissions", files=(("state/runs.sqlite/", ""),)),
    Bad("pending", OPERATOR, "move it away; a new", files=(("state/runs.sqlite", "?" * 5000),)),
    Bad("runs", OPERATOR, "=many must be a whole number", "ORCHESTRATOR_MAX_RUNS=many"),
    Bad("config", OPERATOR, "=0 must be at least 1", "ORCHESTRATOR_KEEP_DAYS=0"),
    Bad("config", OPERATOR, "is neither 1 nor 0", "ORCHESTRATOR_SCRIPTED=perhaps"),
    Bad("config", OPERATOR, "no setting 'max_run'", files=(("orchestrator.yaml", "max_run: 1"),)),
    Bad("config", OPERATOR, "is not valid YAML", files=(("orchestrator.yaml", "a: b: c"),)),
    Bad("config", OPERATOR, "cannot be read: Is a dir", files=(("orchestrator.yaml/", ""),)),
    Bad("run echo hi", OPERATOR, "ANTHROPIC_BASE_URL is not", "ANTHROPIC_BASE_URL=ftp://x"),
    Bad("run echo hi", OPERATOR, "no HTTP header can carry", "ANTHROPIC_API_KEY=a b"),
    Bad("run echo hi", OPERATOR, "SSL_CERT_FILE=/nowhere", "SSL_CERT_FILE=/nowhere"),
    Bad("run echo hi --agents-dir nowhere", OPERATOR, "nowhere; `orchestrator init` makes one"),
    Bad("agents list --agents-dir agents/echo/agent.md", OPERATOR, "is not a directory"),
    Bad("init agents/echo/agent.md", OPERATOR, "Not a directory"),
    Bad("serve --agents-dir nowhere", OPERATOR, "No such file or directory; name a directory"),
    Bad("serve --agents-dir agents/echo/agent.md", OPERATOR, "is not a directory; name one"),
    Bad("serve --agents-dir /usr/..", OPERATOR, "is the whole machine"),
    Bad("serve --runner claud", OPERATOR, "no runner 'claud'; did you mean 'claude'?"),
    Bad(
        "serve --runner-config order.yaml",
        OPERATOR,
        "order.yaml:3: runners[0].priority: must be more than 0, found the number 0",
        files=(("order.yaml", "runners:\n  - name: claude\n    priority: 0\n"),),
    ),
    Bad("serve --runner-config nowhere", OPERATOR, "cannot be read: No such file"),
    Bad("serve --http nowhere", OPERATOR, "HOST:PORT"),
    Bad("serve --http 127.0.0.1:99999", OPERATOR, "HOST:PORT"),
    Bad("serve --http 0.0.0.0:8900", OPERATOR, "ORCHESTRATOR_HTTP_TOKENS"),
    # No engine
    Bad("images list", ENGINE, "no container engine answers; start Docker"),
    Bad("doctor", ENGINE, "no container engine answers", "DOCKER_HOST=tcp://127.0.0.1:1"),
    Bad("images list", ENGINE, "no container engine answers", "DOCKER_HOST=unix:///etc/passwd"),
    Bad("images list", ENGINE, "no container engine answers", "DOCKER_HOST=nonsense"),
    Bad("images prune", ENGINE, "no container engine answers", "DOCKER_HOST=ftp://x"),
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with an agent, no engine, and two runs: one has ended, one asks."""
    (tmp_path / "agents/echo").mkdir(parents=True)
    (tmp_path / "agents/echo/agent.md").write_text(
        "---\nname: echo\ndescription: Echoes.\nworkspace: ro\n---\nEcho.\n"
    )
    for source in SOURCES.values():
        monkeypatch.delenv(source.variable, raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    with Owner(tmp_path / "state") as owner:
        anyio.run(_fill, tmp_path / "state/runs.sqlite", owner.id, str(tmp_path))
        yield tmp_path


async def _fill(path: Path, owner: str, project: str) -> None:
    store = Store(path, owner)
    asked, exchanges = time.time(), Exchanges(store)
    for run_id in ("r1", "r2"):
        await store.add_run(Task(agent="echo", prompt="p", run_id=run_id, project=project))
        await store.set_status(run_id, "running")
    await store.finish(
        RunResult(run_id="r1", agent="echo", caller="main", status="completed", reason="ok")
    )
    times = {"asked": asked, "deadline": asked + 3600}
    await exchanges.ask(Question(message_id="m1", run_id="r2", question="Which?", **times))
    for call in ("c1", "c2"):
        await exchanges.request(Approval(call_id=call, run_id="r2", tool="Bash", **times))
    store.close()


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.line} {bad.variable}".strip())
def test_it_is_told_in_a_sentence(
    bad: Bad, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in bad.files:
        path = here / name
        if path.is_file():
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_text(text)
    if bad.variable:
        monkeypatch.setenv(*bad.variable.split("=", 1))
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", bad.line)]

    said = _typed(words, capfd)
    assert said.code == bad.code, said
    assert bad.said in said.out + said.err
    assert not RAW.search(said.out + said.err), said
    if words[0] in ("serve", "init") or "--json" in words:
        return
    assert bad.code == AUTHOR or said.err.startswith("error: ")
    as_json = _typed([*words, "--json"], capfd)
    assert as_json.code == bad.code
    assert json.loads(as_json.out)
    assert as_json.err == ""


class Said(NamedTuple):
    code: object
    out: str
    err: str


def _typed(words: list[str], capfd: pytest.CaptureFixture[str]) -> Said:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    return Said(exit_.value.code, *capfd.readouterr())
