"""agent.md -> AgentSpec: find, split, validate, say what is wrong on which line."""

from orchestrator.catalog.agent_file import CheckSchema, any_schema, parse_agent
from orchestrator.catalog.folder import AgentsDir, BrokenAgent, Catalog, load_agent, load_catalog
from orchestrator.catalog.problems import Problem
from orchestrator.catalog.prompt import prompt_section
from orchestrator.domain.variables import expand, variables

__all__ = [
    "AgentsDir",
    "BrokenAgent",
    "Catalog",
    "CheckSchema",
    "Problem",
    "any_schema",
    "expand",
    "load_agent",
    "load_catalog",
    "parse_agent",
    "prompt_section",
    "variables",
]
