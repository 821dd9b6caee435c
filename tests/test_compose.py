"""What compose.yaml promises. `make soak` starts it for real."""

from __future__ import annotations

import pytest

from orchestrator.gateway.model.providers import PROVIDERS
from orchestrator.settings import CREDENTIAL_VARIABLES
from tests.compose_file import ROOT, VariableMissing, docker_run, read

NEEDED = {
    "ORCHESTRATOR_HTTP_TOKENS": "main=0123456789abcdef",
    "ORCHESTRATOR_AGENTS_DIR": "/home/somebody/orchestrator/agents",
    "ORCHESTRATOR_WORKSPACES": "/home/somebody/projects",
}


def shown(path: str) -> dict[str, object]:
    """Read-only, under the same path; an error where there is no such directory."""
    return {
        "type": "bind",
        "source": path,
        "target": path,
        "read_only": True,
        "bind": {"create_host_path": False},
    }


@pytest.mark.parametrize("name", NEEDED)
def test_it_does_not_start_without_tokens_agents_and_a_directory_to_share(name: str) -> None:
    with pytest.raises(VariableMissing, match=name):
        read({**NEEDED, name: ""})


def test_its_port_is_open_to_this_machine_only() -> None:
    service = read(NEEDED)["services"]["orchestrator"]
    assert service["ports"] == ["127.0.0.1:8900:8900"]
    assert service["command"] == ["serve", "--http", "0.0.0.0:8900"]


def test_it_is_shown_the_socket_its_state_the_agents_and_the_workspaces_alone() -> None:
    file = read(NEEDED)
    assert file["services"]["orchestrator"]["volumes"] == [
        "/var/run/docker.sock:/var/run/docker.sock",
        "state:/state",
        shown("/home/somebody/orchestrator/agents"),
        shown("/home/somebody/projects"),
    ]
    assert set(file["volumes"]) == {"state"}


def test_a_workspace_has_the_same_path_on_both_sides_and_is_an_allowed_root() -> None:
    service = read({**NEEDED, "ORCHESTRATOR_WORKSPACES": "/srv/code"})["services"]["orchestrator"]
    assert shown("/srv/code") in service["volumes"]
    assert service["environment"]["ORCHESTRATOR_ALLOWED_ROOTS"] == "/srv/code"


def test_agents_have_the_same_path_on_both_sides_too_so_that_none_is_shown_to_write() -> None:
    service = read({**NEEDED, "ORCHESTRATOR_AGENTS_DIR": "/srv/agents"})["services"]["orchestrator"]
    assert shown("/srv/agents") in service["volumes"]
    assert service["environment"]["ORCHESTRATOR_AGENTS_DIR"] == "/srv/agents"
    assert service["environment"]["ORCHESTRATOR_TRUSTED"] == "/srv/agents"


def test_it_has_no_more_rights_than_it_needs() -> None:
    service = read(NEEDED)["services"]["orchestrator"]
    assert not {"privileged", "network_mode", "pid", "ipc", "devices", "user"} & set(service)
    assert service["cap_drop"] == ["ALL"]
    assert service["cap_add"] == ["DAC_READ_SEARCH"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True


def test_every_credential_reaches_it_and_none_is_written_in_it() -> None:
    environment = read(NEEDED)["services"]["orchestrator"]["environment"]
    tokens = "ORCHESTRATOR_HTTP_TOKENS"
    passed_on = CREDENTIAL_VARIABLES - {tokens, "ORCHESTRATOR_TOKEN"}  # it calls no other server
    passed_on |= {each.base_variable for each in PROVIDERS.values()}
    assert {name: environment[name] for name in passed_on} == dict.fromkeys(passed_on)
    assert environment[tokens] == NEEDED[tokens]


def test_all_of_it_can_be_said_as_one_docker_run() -> None:
    service = read(NEEDED)["services"]["orchestrator"]
    argv = docker_run(service, name="n", state="v")
    assert argv[-4:] == [service["image"], "serve", "--http", "0.0.0.0:8900"]


def test_its_dockerfile_is_where_it_says_and_copies_only_what_the_context_holds() -> None:
    build = read(NEEDED)["services"]["orchestrator"]["build"]
    assert build == {"context": ".", "dockerfile": "images/orchestrator/Dockerfile"}
    dockerfile = (ROOT / build["dockerfile"]).read_text()
    copied = [line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    sources = {
        part.replace("[e]", "e") for parts in copied for part in parts if part[0] not in "-/"
    }
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    assert sources == kept
