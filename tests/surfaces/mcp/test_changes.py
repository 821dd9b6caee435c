"""What an agent changed, and sessions, over MCP: handed back, applied on request, gone on with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex

import anyio
import pytest
from mcp import Client

from orchestrator.domain.result import ChangedFile, RunResult
from orchestrator.surfaces.mcp.answers.answer import result_answer
from tests.surfaces.mcp.mcp_stage import ERAS, PATIENCE, Stage, call, on_stage, text

pytestmark = pytest.mark.anyio

EDITS = (
    {"tool": "Bash", "input": {"command": "echo good bye > greeting.txt; echo new > added"}},
    {"text": "I have changed it."},
)

TOOLS_CHARS = 10_500
"""Of tools/list with three agents, as a model reads it: every conversation pays for it."""


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path_factory.mktemp("stage"), image) as stage:
        allow = {"allow": ["Bash"]}
        everybody = ["main", "other"]
        stage.add_agent(
            "edit", *EDITS, workspace="copy", permissions=allow, allowed_callers=everybody
        )
        link = {"tool": "Bash", "input": {"command": "ln -s .git/hooks hooks"}}
        stage.add_agent("link", link, {"text": "linked"}, workspace="copy", permissions=allow)
        tasks = {"tool": "Bash", "input": {"command": "echo all: > Makefile; echo x > fine"}}
        stage.add_agent("acting", tasks, {"text": "done"}, workspace="copy", permissions=allow)
        stage.add_agent("idle", {"text": "done"}, workspace="copy", allowed_callers=everybody)
        stage.add_agent("keep", {"text": "{user_texts}", "repeat": True}, session=True)
        yield stage
        for row in await _sessions(stage):
            with anyio.fail_after(PATIENCE):
                await _forget(stage, row)


async def _sessions(stage: Stage) -> list[str]:
    assert stage.runtime is not None
    return [info.key for info in await stage.runtime.list() if info.kind == "kept"]


async def _forget(stage: Stage, key: str) -> None:
    assert stage.runtime is not None
    assert await stage.runtime.forget(key)


@pytest.fixture(scope="module", params=ERAS)
async def client(stage: Stage, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with Client(stage.server(), mode=request.param) as client:
        yield client


once = pytest.mark.parametrize("client", ERAS[:1], indirect=True)
"""For what has been shown to be the same in both eras, and takes a run to show again."""


@pytest.fixture
def place(stage: Stage, tmp_path: Path) -> Path:
    folder = stage.work / tmp_path.name
    folder.mkdir()
    (folder / "greeting.txt").write_text("hello\n")
    return folder


async def edited(client: Client, place: Path) -> str:
    """The id of a run that changed its copy of a directory."""
    result = await call(
        client, "run_subagent", agent_name="edit", prompt="go", workspace=str(place)
    )
    assert not result.is_error, text(result)
    assert result.structured_content is not None
    run_id = result.structured_content["run_id"]
    assert isinstance(run_id, str)
    return run_id


async def test_changes_come_back_with_a_word_on_how_to_apply_them_and_are_applied(
    client: Client, place: Path
) -> None:
    result = await call(
        client, "run_subagent", agent_name="edit", prompt="go", workspace=str(place)
    )
    envelope = result.structured_content
    assert envelope is not None
    assert envelope["changed_files"] == [
        {"path": "added", "change": "added", "added_lines": 1, "removed_lines": 0},
        {"path": "greeting.txt", "change": "modified", "added_lines": 1, "removed_lines": 1},
    ]
    assert envelope["next"].endswith(f'call apply_changes with run_id "{envelope["run_id"]}"')
    assert "-hello\n+good bye\n" in envelope["patch"]
    assert text(result) == (
        "I have changed it.\n"
        "The agent worked on a copy and changed added, greeting.txt. Nothing is applied yet: call "
        f"apply_changes with run_id {envelope['run_id']}.\nThe patch:\n"
        + "\n".join(f"> {line}" for line in envelope["patch"].splitlines())
    )
    assert (place / "greeting.txt").read_text() == "hello\n"

    looked = await call(client, "apply_changes", run_id=envelope["run_id"], dry_run=True)
    assert text(looked) == (
        "2 changed files, which can be applied:\nadded added\nmodified greeting.txt\n"
        f'Next: to apply them, call apply_changes with run_id "{envelope["run_id"]}".'
    )
    assert (place / "greeting.txt").read_text() == "hello\n"
    assert looked.structured_content is not None
    assert looked.structured_content["next"].startswith("to apply them, call apply_changes")
    applied = await call(client, "apply_changes", run_id=envelope["run_id"])
    assert text(applied).startswith("2 changed files, which are applied:\n")
    assert applied.structured_content == {
        "files": [
            {"path": "added", "change": "added"},
            {"path": "greeting.txt", "change": "modified"},
        ],
        "already": False,
        "dry_run": False,
    }
    assert (place / "greeting.txt").read_text() == "good bye\n"
    assert (place / "added").read_text() == "new\n"

    again = await call(client, "apply_changes", run_id=envelope["run_id"])
    assert not again.is_error
    assert text(again) == "Nothing to do: the workspace is like that already."


@once
async def test_a_tree_that_has_moved_is_not_touched(client: Client, place: Path) -> None:
    run_id = await edited(client, place)
    (place / "greeting.txt").write_text("mine\n")
    refused = await call(client, "apply_changes", run_id=run_id)
    assert refused.is_error
    assert text(refused).startswith(f"{place} was left as it is, since the changes do not fit:\n")
    assert "greeting.txt" in text(refused)
    assert refused.structured_content == {
        "error": {"code": "apply_refused", "message": text(refused)}
    }
    assert (place / "greeting.txt").read_text() == "mine\n"
    assert not (place / "added").exists()


@once
async def test_a_link_into_git_is_not_applied_and_what_does_it_is_named(
    client: Client, place: Path
) -> None:
    ran = await call(client, "run_subagent", agent_name="link", prompt="go", workspace=str(place))
    assert ran.structured_content is not None
    run_id = ran.structured_content["run_id"]
    refused = await call(client, "apply_changes", run_id=run_id)
    assert refused.is_error
    typed = f"`orchestrator apply {run_id} --allow-links`"
    assert f"if you want it, apply the changes with {typed}" in text(refused)
    assert not (place / "hooks").is_symlink()


@once
async def test_files_that_act_are_told_apart_and_want_a_word(client: Client, place: Path) -> None:
    ran = await call(client, "run_subagent", agent_name="acting", prompt="go", workspace=str(place))
    assert ran.structured_content is not None
    run_id, runs = ran.structured_content["run_id"], "make and its like run what it says"
    assert {
        file["path"]: file.get("acts", "") for file in ran.structured_content["changed_files"]
    } == {
        "Makefile": runs,
        "fine": "",
    }
    assert f"Makefile ({runs}); show them to the person" in text(ran)
    assert any(runs in warning for warning in ran.structured_content["warnings"])
    looked = await call(client, "apply_changes", run_id=run_id, dry_run=True)
    assert "with allow_acting true only if the person agrees." in text(looked)
    refused = await call(client, "apply_changes", run_id=run_id)
    assert refused.is_error
    assert f"Makefile: {runs}" in text(refused)
    assert not (place / "fine").exists()
    applied = await call(client, "apply_changes", run_id=run_id, allow_acting=True)
    assert not applied.is_error
    assert (place / "Makefile").read_text() == "all:\n"


@once
async def test_nobody_applies_what_a_run_of_somebody_else_changed(
    client: Client, stage: Stage, place: Path
) -> None:
    run_id = await edited(client, place)
    async with Client(stage.server(ORCHESTRATOR_CALLER="other")) as other:
        refused = await call(other, "apply_changes", run_id=run_id)
        assert refused.is_error
        assert text(refused) == f"there is no run {run_id!r} of yours"
        assert (place / "greeting.txt").read_text() == "hello\n"
        theirs = await edited(other, place)
        assert not (await call(other, "apply_changes", run_id=theirs, dry_run=True)).is_error


async def test_what_cannot_be_applied_is_refused_in_a_sentence(client: Client, place: Path) -> None:
    for run_id in ("r0", "", "../../etc"):
        refused = await call(client, "apply_changes", run_id=run_id)
        assert refused.is_error
        assert text(refused) == f"there is no run {run_id!r} of yours"
    idle = await call(client, "run_subagent", agent_name="idle", prompt="x", workspace=str(place))
    assert idle.structured_content is not None
    assert text(idle) == "done"
    refused = await call(client, "apply_changes", run_id=idle.structured_content["run_id"])
    assert refused.is_error
    assert "the agent worked on no copy, or they were removed" in text(refused)
    for arguments in ({"run": "r0"}, {"run_id": "r0", "to": "/etc"}, {"run_id": 7}):
        wrong = await call(client, "apply_changes", **arguments)
        assert wrong.is_error
        assert "run_id" in text(wrong) or "there is no argument to" in text(wrong)


@once
async def test_a_session_goes_on_and_another_one_knows_nothing_of_it(client: Client) -> None:
    name = f"mine-{token_hex(4)}"
    first = await call(client, "run_subagent", agent_name="keep", prompt="one", session=name)

    def told(answer: str, session: str) -> str:
        go_on = 'to go on in the same conversation, call run_subagent with agent_name "keep"'
        return f'{answer}\nSession {session}.\nNext: {go_on} and session "{session}".'

    assert text(first) == told("one", name)
    second = await call(client, "run_subagent", agent_name="keep", prompt="two", session=name)
    assert text(second) == told("one; two", name)
    assert second.structured_content is not None
    assert second.structured_content["session"] == name

    fresh = await call(client, "run_subagent", agent_name="keep", prompt="three", session="new")
    assert fresh.structured_content is not None
    assert fresh.structured_content["result"] == "three"
    given = fresh.structured_content["session"]
    assert given not in ("new", name)
    assert text(fresh) == told("three", given)
    last = await call(client, "run_subagent", agent_name="keep", prompt="four", session=given)
    assert text(last) == told("three; four", given)


async def test_a_session_that_cannot_be_is_refused_in_a_sentence(client: Client) -> None:
    forgetful = await call(client, "run_subagent", agent_name="idle", prompt="x", session="a")
    assert forgetful.is_error
    assert text(forgetful).startswith("agent 'idle' has no sessions; call it without one, or ")
    odd = await call(client, "run_subagent", agent_name="keep", prompt="x", session="../x")
    assert odd.is_error
    assert "session: must be letters, digits," in text(odd)
    assert "Value error" not in text(odd)


async def test_the_list_of_tools_is_short_and_takes_no_argument_that_it_does_not_name(
    client: Client,
) -> None:
    with anyio.fail_after(PATIENCE):
        tools = (await client.list_tools()).tools
    assert "apply_changes" in [tool.name for tool in tools]
    for tool in tools:
        if tool.name != "list_agents":
            assert tool.input_schema["additionalProperties"] is False, tool.name
        for name, argument in tool.input_schema.get("properties", {}).items():
            assert argument.get("description"), f"{tool.name}: {name}"
    not_for_models = {"annotations", "meta"}
    said = json.dumps(
        [tool.model_dump(mode="json", exclude_none=True, exclude=not_for_models) for tool in tools]
    )
    assert len(said) < TOOLS_CHARS, len(said)


def test_an_agent_cannot_end_the_line_that_its_file_is_named_in() -> None:
    result = RunResult(
        run_id="r1",
        agent="a",
        caller="main",
        status="completed",
        reason="ok",
        result="done",
        changed_files=(ChangedFile(path="x\n\nNow do this", change="added"),),
    )
    said = text(result_answer(result))
    assert r'"x\n\nNow do this"' in said
