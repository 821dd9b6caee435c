"""Flags, the environment and orchestrator.yaml -> Settings."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator.errors import OperatorError
from orchestrator.settings import (
    CREDENTIAL_VARIABLES,
    SOURCES,
    Settings,
    environment,
    read_settings,
    read_settings_with_origins,
)

DENY = ("deny_on_missing_caller", True)


def test_docker_host_alone_decides(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "DOCKER_HOST": "tcp://engine:2375"}
    assert read_settings(env).engine_candidates == ("tcp://engine:2375",)


def test_the_selected_docker_context_is_used(tmp_path: Path) -> None:
    base = tmp_path / ".docker"
    meta = base / "contexts/meta" / hashlib.sha256(b"desktop").hexdigest()
    meta.mkdir(parents=True)
    (base / "config.json").write_text(json.dumps({"currentContext": "desktop"}))
    endpoint = {"Endpoints": {"docker": {"Host": "unix:///somewhere/docker.sock"}}}
    (meta / "meta.json").write_text(json.dumps(endpoint))

    env = {"HOME": str(tmp_path)}
    assert read_settings(env).engine_candidates == ("unix:///somewhere/docker.sock",)


def test_the_usual_sockets_are_tried_and_podman_last(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/me"}
    candidates = read_settings(env).engine_candidates

    assert candidates[0] == "unix:///var/run/docker.sock"
    assert f"unix://{tmp_path}/.orbstack/run/docker.sock" in candidates
    assert candidates[-2:] == (
        "unix:///run/me/podman/podman.sock",
        "unix:///run/podman/podman.sock",
    )


def test_directories_follow_the_environment(tmp_path: Path) -> None:
    plain = read_settings({"HOME": str(tmp_path)}, cwd=Path("/srv/work"))
    told = read_settings(
        {
            "HOME": str(tmp_path),
            "ORCHESTRATOR_STATE_DIR": "/state",
            "ORCHESTRATOR_CACHE_DIR": "/cache",
            "ORCHESTRATOR_ALLOWED_ROOTS": "/a:/b",
        }
    )

    assert plain.state_dir == tmp_path / ".local/state/subagent-orchestrator"
    assert plain.cache_dir == tmp_path / ".cache/subagent-orchestrator"
    assert plain.allowed_roots == (tmp_path, Path("/srv/work"))
    assert (told.state_dir, told.cache_dir) == (Path("/state"), Path("/cache"))
    assert told.allowed_roots == (Path("/a"), Path("/b"))


def agents_of(cwd: Path, home: Path) -> Path:
    return read_settings({"HOME": str(home)}, cwd=cwd).agents_dir


def test_a_project_is_found_from_every_folder_below_it(tmp_path: Path) -> None:
    project, deep = tmp_path / "project", tmp_path / "project/src/deep"
    deep.mkdir(parents=True)
    assert agents_of(deep, tmp_path) == deep / "agents"
    (project / "orchestrator.yaml").write_text("agents_dir: mine\nmax_runs: 2\n")
    found = read_settings({"HOME": str(tmp_path)}, cwd=deep)
    assert (found.agents_dir, found.max_runs) == (project / "mine", 2)
    assert found.project == str(project / "mine")
    (project / "orchestrator.yaml").unlink()
    (project / "agents/a").mkdir(parents=True)
    (project / "agents/a/agent.md").touch()
    assert agents_of(deep, tmp_path) == project / "agents"
    assert read_settings({"HOME": "/h"}, cwd=deep).allowed_roots == (Path("/h"), project)
    (deep / "agents").mkdir()  # of another kind: without an agent.md
    assert agents_of(deep, tmp_path) == project / "agents"
    (deep / "agents/b").mkdir()
    (deep / "agents/b/agent.md").touch()
    assert agents_of(deep, tmp_path) == deep / "agents"


def test_a_project_is_not_looked_for_beyond_the_repository_or_below_a_home(tmp_path: Path) -> None:
    deep = tmp_path / "clone/src"
    deep.mkdir(parents=True)
    (tmp_path / "agents/a").mkdir(parents=True)
    (tmp_path / "agents/a/agent.md").touch()
    assert agents_of(deep, Path("/h")) == tmp_path / "agents"
    assert agents_of(deep, tmp_path) == deep / "agents"
    assert agents_of(tmp_path, tmp_path) == tmp_path / "agents"
    (deep.parent / ".git").touch()  # as worktrees and submodules have it
    assert agents_of(deep, Path("/h")) == deep / "agents"
    assert agents_of(deep.parent, Path("/h")) == deep.parent / "agents"


def test_agents_that_another_user_could_have_put_above_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "shared/mine"
    deep.mkdir(parents=True)
    (tmp_path / "shared/agents/a").mkdir(parents=True)
    (tmp_path / "shared/agents/a/agent.md").touch()
    assert agents_of(deep, Path("/h")) == tmp_path / "shared/agents"
    deep.parent.chmod(0o777)
    assert agents_of(deep, Path("/h")) == deep / "agents"
    deep.parent.chmod(0o755)
    monkeypatch.setattr("os.getuid", lambda: deep.stat().st_uid + 1)
    assert agents_of(deep, Path("/h")) == deep / "agents"


def test_tls_is_used_when_docker_says_so(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "DOCKER_TLS_VERIFY": "1"}
    assert read_settings(env).tls_dir == tmp_path / ".docker"
    assert read_settings({"HOME": str(tmp_path)}).tls_dir is None


def test_a_certificate_path_counts_only_when_tls_is_used(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "DOCKER_CERT_PATH": "/certs"}
    assert read_settings(env).tls_dir is None
    settings, origins = read_settings_with_origins({**env, "DOCKER_TLS_VERIFY": "1"})
    assert (settings.tls_dir, origins["tls_dir"]) == (Path("/certs"), "DOCKER_CERT_PATH")


def test_a_flag_wins_over_the_environment_that_over_the_file_and_that_over_the_default(
    tmp_path: Path,
) -> None:
    file = tmp_path / "orchestrator.yaml"
    file.write_text("max_runs: 3\nmax_runs_per_agent: 2\nagents_dir: a\ncaller: filed\n")
    env = {
        "HOME": str(tmp_path),
        "ORCHESTRATOR_MAX_RUNS": "4",
        "ORCHESTRATOR_AGENTS_DIR": "/b",
    }
    flags = {"agents_dir": Path("/c"), "caller": None}
    settings, origins = read_settings_with_origins(env, tmp_path, flags)

    assert (settings.agents_dir, origins["agents_dir"]) == (Path("/c"), "--agents-dir")
    assert (settings.max_runs, origins["max_runs"]) == (4, "ORCHESTRATOR_MAX_RUNS")
    assert (settings.max_runs_per_agent, origins["max_runs_per_agent"]) == (2, str(file))
    assert (settings.caller, origins["caller"]) == ("filed", str(file))
    assert (settings.scripted, origins["scripted"]) == (False, "default")
    assert list(origins) == list(Settings.model_fields)


def test_every_setting_but_home_names_its_variable_where_it_is_described() -> None:
    assert set(SOURCES) == set(Settings.model_fields) - {"home"}
    (described,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(described, ast.ClassDef)
    for field, below in pairwise(described.body):
        if not isinstance(field, ast.AnnAssign) or ast.unparse(field.target) == "home":
            continue
        assert isinstance(below, ast.Expr), ast.unparse(field)
        variable = SOURCES[ast.unparse(field.target)].variable
        assert re.search(rf"\b{variable}\b", ast.unparse(below)), ast.unparse(field)


def test_every_secret_stays_out_of_files_and_of_what_agents_can_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = {
        *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
        *("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "ORCHESTRATOR_HTTP_TOKENS"),
        *("ORCHESTRATOR_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "ORCHESTRATOR_WEBHOOK_SECRETS"),
    }
    assert secret == CREDENTIAL_VARIABLES
    assert not [s for s in SOURCES.values() if s.variable in secret and s.writer != "environment"]
    for variable in secret:
        monkeypatch.setenv(variable, "a secret of sixteen letters")
    assert not secret & set(environment())


def test_paths_in_the_file_start_from_its_directory(tmp_path: Path) -> None:
    (tmp_path / "orchestrator.yaml").write_text("agents_dir: a\n")
    own = user_file(tmp_path, "state_dir: s\nallowed_roots: [w, /abs]\n")
    settings = read_settings({"HOME": str(tmp_path)}, tmp_path)
    assert settings.agents_dir == tmp_path / "a"
    assert settings.state_dir == own.parent / "s"
    assert settings.allowed_roots == (own.parent / "w", Path("/abs"))


def user_file(home: Path, text: str) -> Path:
    file = home / ".config/subagent-orchestrator/config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("name", sorted(n for n, s in SOURCES.items() if s.writer == "user"))
def test_a_repository_cannot_decide_over_the_machine(tmp_path: Path, name: str) -> None:
    (tmp_path / "orchestrator.yaml").write_text(f"{name}: x\n")
    with pytest.raises(OperatorError) as caught:
        read_settings({"HOME": str(tmp_path)}, tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/orchestrator.yaml: {name} decides over this machine")
    assert SOURCES[name].variable in said


def test_what_decides_over_the_machine_is_the_users(tmp_path: Path) -> None:
    names = {name for name, source in SOURCES.items() if source.writer == "user"}
    assert names == {
        *("state_dir", "cache_dir", "allowed_roots", "scripted", "http_hosts"),
        *("agent_image", "base_image", "claude_binary", "npm_registry"),
        *("trusted", "keep_days", "keep_mb", "upload_mb", "server", "token_file"),
        *("metrics", "log_json", "webhooks"),
        *("gateway_rules", "gateway_default_agent", "gateway_debug"),
    }


def test_the_project_wins_over_the_users_file_which_is_the_users_alone(tmp_path: Path) -> None:
    own = user_file(tmp_path, "max_runs: 2\nscripted: true\nkeep_days: 5\n")
    (tmp_path / "orchestrator.yaml").write_text("max_runs: 1\nwindow_seconds: 7\n")
    settings, origins = read_settings_with_origins({"HOME": str(tmp_path)}, tmp_path)
    assert (settings.max_runs, settings.scripted, settings.keep_days) == (1, True, 5)
    assert settings.window_seconds == 7
    assert (origins["keep_days"], origins["scripted"]) == (str(own), str(own))
    own.chmod(0o620)
    with pytest.raises(OperatorError, match="can be written by another user"):
        read_settings({"HOME": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize(
    ("mine", "theirs", "name", "value"),
    [
        ("max_runs: 2", "max_runs: 500", "max_runs", 2),
        ("", "max_runs: 500", "max_runs", 8),
        ("", "max_spares_mb: 100000", "max_spares_mb", 4096),
        ("max_runs_per_agent: 2", "max_runs_per_agent: 1", "max_runs_per_agent", 1),
        ("deny_on_missing_caller: true", "deny_on_missing_caller: false", *DENY),
        ("", "deny_on_missing_caller: true", *DENY),
    ],
)
def test_a_project_may_lower_what_all_projects_share_and_not_raise_it(
    tmp_path: Path, mine: str, theirs: str, name: str, value: object
) -> None:
    user_file(tmp_path, f"{mine}\n")
    (tmp_path / "orchestrator.yaml").write_text(f"{theirs}\n")
    assert getattr(read_settings({"HOME": str(tmp_path)}, tmp_path), name) == value


@pytest.mark.parametrize("folder", [".", "..", "/srv/agents"])
def test_a_projects_file_names_agents_below_it_alone(tmp_path: Path, folder: str) -> None:
    (tmp_path / "orchestrator.yaml").write_text(f"agents_dir: {folder}\n")
    with pytest.raises(OperatorError, match="agents_dir must be a folder below"):
        read_settings({"HOME": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize("caller", ["operator", "unknown", "agent", "a b"])
def test_no_caller_has_a_name_of_the_audits(tmp_path: Path, caller: str) -> None:
    for name, value in (
        ("CALLER", caller),
        ("CALLERS", f"x,{caller}"),
        ("HTTP_TOKENS", f"{caller}=0123456789abcdef"),
    ):
        with pytest.raises(OperatorError, match="no caller can be called"):
            read_settings({"HOME": str(tmp_path), f"ORCHESTRATOR_{name}": value}, tmp_path)


def test_the_environment_can_turn_off_what_the_file_turns_on(tmp_path: Path) -> None:
    user_file(tmp_path, "scripted: true\n")
    env = {"HOME": str(tmp_path)}
    assert read_settings(env, tmp_path).scripted is True
    assert read_settings({**env, "ORCHESTRATOR_SCRIPTED": "0"}, tmp_path).scripted is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_rnus: 3", "there is no setting 'max_rnus'; did you mean 'max_runs'?"),
        ("quux: 3", "there is no setting 'quux'; known: "),
        ("home: /root", "there is no setting 'home'; known: "),
        ("max_runs: '3'", "max_runs: found '3'; it must be a whole number"),
        ("max_runs: 0", "max_runs: found '0'; it must be at least 1"),
        ("claude_version: 2.1", "claude_version: found '2.1'; it must be text"),
        ("anthropic_api_key: k", "anthropic_api_key is not read from a file"),
        ("http_tokens: {main: k}", "http_tokens is not read from a file"),
        ("anthropic_base_url: https://x", "anthropic_base_url is not read from a file"),
        ("engine_candidates: [tcp://x]", "set the variable DOCKER_HOST"),
        ("- max_runs", "must be a mapping, such as `max_runs: 4`"),
        ("agent_image: {{ image }}", "orchestrator.yaml:1: agent_image: a key must be text"),
        (
            "a: b: c",
            "orchestrator.yaml:1: is not valid YAML: mapping values are not allowed here",
        ),
    ],
)
def test_a_file_with_a_mistake_is_refused_and_says_what_to_do(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "orchestrator.yaml").write_text(text + "\n")
    with pytest.raises(OperatorError) as caught:
        read_settings({"HOME": str(tmp_path)}, tmp_path)
    assert said in str(caught.value)
    assert str(tmp_path / "orchestrator.yaml") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "http_hosts: &a [x]\ncaller: *a\n",
            ":1: is not valid YAML: anchors are not understood",
        ),
        ("max_runs: 2\nmax_runs: 3\n", ":2: max_runs: is given twice, first on line 1; remove"),
    ],
)
def test_a_file_cannot_unfold_or_say_two_things(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "orchestrator.yaml").write_text(text)
    with pytest.raises(OperatorError, match=re.escape(says)):
        read_settings({"HOME": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize(("text", "on"), [("1", True), ("yes", True), ("0", False), ("off", False)])
def test_a_switch_is_on_or_off(text: str, on: bool) -> None:
    assert read_settings({"HOME": "/h", "ORCHESTRATOR_SCRIPTED": text}).scripted is on


def test_a_switch_that_is_neither_is_refused() -> None:
    with pytest.raises(OperatorError, match="ORCHESTRATOR_SCRIPTED=maybe is neither 1 nor 0"):
        read_settings({"HOME": "/h", "ORCHESTRATOR_SCRIPTED": "maybe"})


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "orchestrator.yaml").write_text("# nothing yet\n")
    assert read_settings({"HOME": str(tmp_path)}, tmp_path).max_runs == 8


@pytest.mark.parametrize("text", ["0", "-1", "many", "²"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OperatorError, match="ORCHESTRATOR_MAX_RUNS"):
        read_settings({"HOME": "/", "ORCHESTRATOR_MAX_RUNS": text}, Path("/nonexistent"))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("max_runs", "0", "must be at least 1"),
        ("max_runs", "1.5", "must be a whole number"),
        ("max_spares", "-1", "must be at least 0"),
        ("keep_days", "0", "must be at least 1"),
        ("window_seconds", "0", "must be more than 0"),
        ("window_seconds", "soon", "must be a number"),
        ("window_seconds", ".inf", "must be a number"),
        ("window_seconds", "inf", "must be at most 999999999"),
        ("keep_days", "9" * 400, "must be at most 999999999"),
    ],
)
def test_a_limit_is_the_same_in_the_environment_and_in_the_file(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    variable = SOURCES[name].variable
    with pytest.raises(OperatorError) as caught:
        read_settings({"HOME": "/h", variable: text}, Path("/nonexistent"))
    assert str(caught.value) == f"{variable}={text[:60]} {said}; correct or unset it"
    (tmp_path / "orchestrator.yaml").write_text(f"{name}: {text}\n")
    with pytest.raises(OperatorError, match=f"{name}"):
        read_settings({"HOME": "/h"}, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_spares", "0", 0),
        ("keep_mb", "123456789", 123456789),
        ("window_seconds", "2", 2.0),
        ("compatibility", "true", True),
        ("caller", "8", "8"),
        ("claude_version", "2.10", "2.10"),
        ("claude_binary", "~/claude", Path.home() / "claude"),
        ("http_hosts", " a, ,b ", ("a", "b")),
    ],
)
def test_a_variable_is_read_as_what_its_setting_is(name: str, text: str, value: object) -> None:
    settings = read_settings({"HOME": "/h", SOURCES[name].variable: text}, Path("/nonexistent"))
    assert getattr(settings, name) == value
