"""What a caller can do next, in the words of our tools: about a run under way or one that ended."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.domain.result import RunResult
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.surfaces.text import command


def next_step(view: TaskView) -> str:
    """What has to be done for a run to go on."""
    steps = [
        f"answer with reply_subagent(run_id={spelt(question.run_id)}, "
        f'message_id={spelt(question.message_id)}, answer="...")'
        for question in view.questions
    ]
    mine = [call for call in view.approvals if call.approval_by == "parent"]
    for run_id in dict.fromkeys(call.run_id for call in mine):
        calls = spelt([call.call_id for call in mine if call.run_id == run_id])
        steps.append(
            f"decide with resume_subagent_task(task_id={spelt(run_id)}, approve={calls}), or "
            f"reject={calls}, or approve with edited_input={{call_id: input}}"
        )
    wait = f"call wait_for_tasks with task_ids {spelt([view.run_id])}"
    persons = [call for call in view.approvals if call.approval_by == "user"]
    if persons:
        typed = " or ".join(f"`{command('approve', c.run_id, c.call_id)}`" for c in persons)
        steps.append(
            f"a person has to decide, you cannot: tell your user what it wants to do, and that "
            f"{typed} in a terminal allows it (`reject` refuses it); then {wait}"
        )
    if steps:
        return "; ".join(steps)
    return f"{wait}; it goes on meanwhile"


def after_end(result: RunResult, unheard: Sequence[str]) -> str:
    """What can be done with a run that has ended."""
    steps = []
    if result.changed_files:
        steps.append(
            "the agent worked on a copy, and nothing is applied yet: look at what it changed, then "
            f"call apply_changes with run_id {spelt(result.run_id)}"
        )
        if any(file.acts for file in result.changed_files):
            steps.append(
                "files with `acts` do something on this machine: show them to the person first, "
                "and give allow_acting true only if the person agrees"
            )
    if result.session:
        steps.append(in_session(result))
    if unheard:
        steps.append("the agent ended before it heard what is in unheard: tell it again")
    return "; ".join(steps)


def in_session(result: RunResult) -> str:
    """How to go on in the conversation that a run was in."""
    return (
        f"to go on in the same conversation, call run_subagent with agent_name "
        f"{spelt(result.agent)} and session {spelt(result.session)}"
    )


def after_look(run_id: str, *, acting: bool) -> str:
    """How to apply changes that have been looked at, some of which may act on this machine."""
    step = f"to apply them, call apply_changes with run_id {spelt(run_id)}"
    if acting:
        step += ", and with allow_acting true if the person has seen those with `acts` and agrees"
    return step


def spelt(value: object) -> str:
    """A value as a caller writes it in a call."""
    return json.dumps(value, ensure_ascii=False)


def without_empty(document: dict[str, object]) -> dict[str, object]:
    """The same without fields that say nothing. A number and a flag always say something."""
    return {key: value for key, value in document.items() if value not in _EMPTY}


_EMPTY: tuple[object, ...] = ("", None, [], (), {})
