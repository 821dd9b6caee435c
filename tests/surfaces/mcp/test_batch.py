"""Several tasks in one call: their names, and the order in which they begin."""

from __future__ import annotations

import pytest

from orchestrator.errors import CallerError
from orchestrator.surfaces.mcp.batch import Batch, BatchTask


def task(name: str = "", *depends_on: str) -> BatchTask:
    return BatchTask(agent_name="a", prompt="x", id=name, depends_on=depends_on)


def test_each_begins_after_those_it_depends_on_and_those_without_a_name_are_numbered() -> None:
    batch = Batch([task("", "first", "3"), task("first"), task("")])
    assert batch.names == ("1", "first", "3")
    order = [name for name, _ in batch.in_order()]
    assert sorted(order) == ["1", "3", "first"]
    assert order[-1] == "1"


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([task("a"), task("a")], "id 'a' is there more than once"),
        ([task("2"), task("")], "id '2' is there more than once"),
        ([task("a", "b")], "task 'a' depends on 'b', which is not in this call; known: a"),
        ([task("a", "a")], "these tasks wait for each other: a -> a"),
        ([task("a", "b"), task("b", "a")], "these tasks wait for each other: (a -> b|b -> a) -> "),
    ],
)
def test_tasks_that_cannot_be_put_in_order_are_refused(tasks: list[BatchTask], says: str) -> None:
    with pytest.raises(CallerError, match=says):
        Batch(tasks)
