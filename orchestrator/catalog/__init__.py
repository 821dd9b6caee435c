"""agent.md and agent files of others -> AgentSpec: find, read, say what is wrong on which line."""

from orchestrator.catalog.agent_file import CheckSchema, ParsedAgent, any_schema, parse_agent
from orchestrator.catalog.folder import (
    AgentsDir,
    BrokenAgent,
    BrokenServer,
    Catalog,
    CheckAgent,
    KnownServer,
    load_agent,
    load_catalog,
    write_lock,
)
from orchestrator.catalog.foreign.notes import Note
from orchestrator.catalog.listing import agents_of_others
from orchestrator.catalog.problems import Problem, Remark
from orchestrator.catalog.prompt import prompt_section
from orchestrator.domain.variables import expand, variables

__all__ = [
    "AgentsDir",
    "BrokenAgent",
    "BrokenServer",
    "Catalog",
    "CheckAgent",
    "CheckSchema",
    "KnownServer",
    "Note",
    "ParsedAgent",
    "Problem",
    "Remark",
    "agents_of_others",
    "any_schema",
    "expand",
    "load_agent",
    "load_catalog",
    "parse_agent",
    "prompt_section",
    "variables",
    "write_lock",
]
