"""Two projects with agents of the same names and one state directory, called at random.

Every call leaves a word of its own in the conversation, in the session's files, in the memory and
in the workspace; after each, what the agent has of words must be its project's, all and only.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from orchestrator.app import open_orchestrator
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.errors import RunNotFound
from orchestrator.settings import Settings, read_settings

PATIENCE = 170
AT_ONCE = 3

NOTES = (
    "echo {last_user_text} >> words; echo {last_user_text} >> /home/agent/memory.md; "
    "echo files $(cat words) end; echo memory $(cat /home/agent/memory.md) end"
)
NOTEBOOK = [
    {"tool": "Bash", "input": {"command": NOTES, "timeout": 600_000}},
    {"text": "{last_tool_result} said {user_texts} end"},
]
LOOKS = "echo {last_user_text} > new; echo files $(cat given new) end"
EDITOR = [
    {"tool": "Bash", "input": {"command": LOOKS, "timeout": 600_000}},
    {"text": "{last_tool_result}"},
]


@dataclass
class Project:
    """One of them, with what its agents have been told so far."""

    name: str
    service: Service
    tasks: Tasks
    workspace: Path
    said: list[str] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    def word(self) -> str:
        return f"{self.name}{len(self.runs)}"

    async def note(self) -> None:
        """One call to the session agent."""
        async with self.lock:  # or the order of the words would be another one
            word = self.word()
            result = await self._run(Task(agent="notebook", prompt=word))
            self.said.append(word)
            text = str(result.result)
            words = " ".join(self.said)
            assert f"files {words} end" in text, (self.name, text)
            assert f"memory {words} end" in text, (self.name, text)
            spoken = text.partition(" said ")[2]
            assert [each for each in self.said if each not in spoken] == []
            foreign = "b" if self.name == "a" else "a"
            assert not [f"{foreign}{n}" for n in range(1000) if f"{foreign}{n} " in spoken]

    async def edit(self) -> None:
        """One call to the agent that works on a copy, made on a spare."""
        word = self.word()
        result = await self._run(Task(agent="editor", prompt=word, workspace=self.workspace))
        assert str(result.result).strip() == f"files {self.name}-given {word} end"
        assert [file.path for file in result.changed_files] == ["new"]

    async def look(self) -> None:
        """What its callers see is its own."""
        mine = {view.run_id for view in await self.tasks.book.list("main", limit=1000)}
        assert mine <= self.runs
        foreign = [r.run_id for r in await self.service.store.find_runs(limit=1000)]
        for run_id in set(foreign) - self.runs:
            assert not await self._sees(run_id), f"{self.name} sees {run_id}"

    async def _sees(self, run_id: str) -> bool:
        try:
            await self.tasks.book.view(run_id, "main")
        except RunNotFound:
            return False
        return True

    async def _run(self, task: Task) -> RunResult:
        self.runs.add(task.run_id)
        with anyio.fail_after(PATIENCE):
            result = await self.service.run(task)
        assert result.status == "completed", result
        return result


async def trial(folder: Path, image: str, calls: int, seed: int) -> tuple[int, int]:
    """So many calls, side by side and in turn; how many runs each project had."""
    chance = random.Random(seed)
    (folder / "state").mkdir(mode=0o700)
    async with _opened(folder, image, "a") as one, _opened(folder, image, "b") as two:
        left = calls
        while left > 0:
            async with anyio.create_task_group() as group:
                for _ in range(min(left, chance.randint(1, AT_ONCE))):
                    project = chance.choice((one, two))
                    group.start_soon(chance.choice((project.note, project.note, project.edit)))
                    left -= 1
            await chance.choice((one, two)).look()
        for project in (one, two):
            await project.look()
            rows = await project.service.sessions.list()
            own = [row for row in rows if row.key.project == project.service.project]
            assert len(own) <= 1
            for row in own:
                await project.service.sessions.remove(row.key)
        assert not one.runs & two.runs
        return len(one.runs), len(two.runs)


@asynccontextmanager
async def _opened(folder: Path, image: str, name: str) -> AsyncIterator[Project]:
    root = folder / name / "same"
    settings = _settings(folder, root, image)
    _write(root, "notebook", NOTEBOOK, session=True, memory="rw")
    _write(root, "editor", EDITOR, workspace={"mode": "copy"}, warm=1)
    workspace = root / "work"
    workspace.mkdir()
    (workspace / "given").write_text(f"{name}-given\n")
    async with open_orchestrator(settings, {}) as service, Tasks(service) as tasks:
        yield Project(name, service, tasks, workspace)


def _settings(folder: Path, root: Path, image: str) -> Settings:
    return read_settings(
        {
            "ORCHESTRATOR_SCRIPTED": "1",
            "ORCHESTRATOR_AGENT_IMAGE": image,
            "ORCHESTRATOR_AGENTS_DIR": str(root / "agents"),
            "ORCHESTRATOR_STATE_DIR": str(folder / "state"),
            "ORCHESTRATOR_ALLOWED_ROOTS": str(folder),
        }
    )


def _write(root: Path, name: str, steps: object, **fields: object) -> None:
    folder = root / "agents" / name
    folder.mkdir(parents=True)
    script = {"steps": steps, "each_task": True}
    (folder / "script.yaml").write_text(json.dumps(script))
    head = {"name": name, "description": "d", "permissions": {"allow": ["Bash"]}, **fields}
    (folder / "agent.md").write_text(f"---\n{json.dumps(head)}\n---\nDo it.\n")
