"""Several tasks in one call, some after others -> the order to start them in. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orchestrator.errors import CallInvalid
from orchestrator.surfaces.mcp.arguments import OptionalText


class BatchTask(BaseModel):
    """One of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    agent_name: str
    prompt: str
    context: OptionalText = ""
    workspace: OptionalText = ""
    session: OptionalText = ""
    id: Annotated[OptionalText, Field(description="What depends_on of others may name")] = ""
    depends_on: Annotated[
        tuple[str, ...], BeforeValidator(lambda given: () if given is None else given)
    ] = ()


class Batch:
    """Checked: each name is there once, and nothing waits for itself."""

    def __init__(self, tasks: Sequence[BatchTask]) -> None:
        self.names = tuple(task.id or str(number) for number, task in enumerate(tasks, 1))
        """Of all of them, in the order of the call; those without a name are numbered."""
        self._tasks = dict(zip(self.names, tasks, strict=True))
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise CallInvalid(f"id {twice[0]!r} is there more than once; give each task its own")
        for name, task in self._tasks.items():
            for before in task.depends_on:
                if before not in self._tasks:
                    raise CallInvalid(
                        f"task {name!r} depends on {before!r}, which is not in this call; known: "
                        f"{', '.join(self.names)}"
                    )
        sorter = TopologicalSorter({name: task.depends_on for name, task in self._tasks.items()})
        try:
            self._order = tuple(sorter.static_order())
        except CycleError as exc:
            circle = " -> ".join(reversed(exc.args[1]))
            raise CallInvalid(f"these tasks wait for each other: {circle}") from exc

    def in_order(self) -> Iterator[tuple[str, BatchTask]]:
        """Each after those that it depends on."""
        for name in self._order:
            yield name, self._tasks[name]
