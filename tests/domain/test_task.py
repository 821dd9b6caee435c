"""What may be a task."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from orchestrator.domain.task import Task, new_run_id


@pytest.mark.parametrize("name", ["", "a", "0", "Main", "a.b_c-d", "a" * 64])
def test_a_session_has_a_name_that_can_be_typed(name: str) -> None:
    assert Task(agent="a", prompt="b", session=name).session == name


@pytest.mark.parametrize("name", ["a b", ".a", "-a", "_a", "a/b", "a\n", "é", "a" * 65])
def test_another_name_of_a_session_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="letters, digits"):
        Task(agent="a", prompt="b", session=name)


def test_the_context_stands_before_the_prompt_and_a_prompt_alone_is_told_as_it_is() -> None:
    assert Task(agent="a", prompt="Do it.").message == "Do it."
    told = Task(agent="a", prompt="Do it.", context="It rains.").message
    assert told == "Context:\nIt rains.\n\nTask:\nDo it."


def test_each_task_has_an_id_of_its_own_that_can_be_typed() -> None:
    ids = {new_run_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(each) for each in ids} == {11}
