"""AgentSpec -> the values of the secrets that it names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.agent import AgentSpec
from orchestrator.errors import OperatorError
from orchestrator.gateway.secrets import secret_store
from orchestrator.gateway.secrets.secret_store import SecretStore, variable_of
from orchestrator.settings import environment, read_settings, secret_environment

VALUE = "s3cr3t-value-that-nobody-sees"
PATIENCE = 60


def agent(*names: str, **secret: object) -> AgentSpec:
    about = {"hosts": ("api.test",), "paths": ("/**",), **secret}
    return AgentSpec.model_validate(
        {
            "name": "worker",
            "description": "Works.",
            "secrets": [{"name": name, **about} for name in names or ("token",)],
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secrets.yaml"


async def value_of(store: SecretStore, spec: AgentSpec | None = None) -> str:
    with anyio.fail_after(PATIENCE):
        return (await store.resolve(spec or agent()))["token"].get_secret_value()


async def refusal(store: SecretStore, spec: AgentSpec | None = None) -> str:
    with anyio.fail_after(PATIENCE), pytest.raises(OperatorError) as caught:
        await store.resolve(spec or agent())
    assert VALUE not in str(caught.value)
    assert caught.value.__cause__ is None or VALUE not in repr(caught.value.__cause__)
    return str(caught.value)


def write(file: Path, text: str, mode: int = 0o600) -> None:
    file.write_text(text)
    file.chmod(mode)


def printing(text: str, *more: str) -> str:
    """A command for the secrets file that prints something."""
    program = ["import sys", f"sys.stdout.write({text!r})", *more]
    return f"token: {{command: {[sys.executable, '-c', '; '.join(program)]!r}}}\n"


async def test_a_variable_of_its_own_comes_first(file: Path) -> None:
    write(file, "token: {env: OTHER}\n")
    environ = {"ORCHESTRATOR_SECRET_TOKEN": VALUE, "OTHER": "another-value"}

    assert await value_of(SecretStore(file, environ)) == VALUE
    assert variable_of("github.token-2") == "ORCHESTRATOR_SECRET_GITHUB_TOKEN_2"


async def test_the_file_says_which_variable_file_or_command_has_it(file: Path) -> None:
    (file.parent / "kept").write_text(f"{VALUE}\n")
    for text in ("token: {env: OTHER}", "token: {file: kept}", printing(f"{VALUE}\n")):
        write(file, text)
        assert await value_of(SecretStore(file, {"OTHER": VALUE})) == VALUE


async def test_without_secrets_nothing_is_read(file: Path) -> None:
    write(file, "not a mapping")
    spec = AgentSpec(name="worker", description="Works.")
    assert await SecretStore(file, {}).resolve(spec) == {}


async def test_a_missing_secret_is_told_with_the_places_where_it_was_looked_for(
    file: Path,
) -> None:
    said = await refusal(SecretStore(file, {}))
    assert "token" in said
    assert "ORCHESTRATOR_SECRET_TOKEN" in said
    assert str(file) in said

    write(file, "token: {env: OTHER}")
    assert "OTHER, which is not set" in await refusal(SecretStore(file, {}))
    write(file, "token: {file: nowhere}")
    assert "nowhere cannot be read (No such file" in await refusal(SecretStore(file, {}))


async def test_only_the_agents_and_hosts_that_the_operator_names_get_it(file: Path) -> None:
    environ = {"ORCHESTRATOR_SECRET_TOKEN": VALUE}  # the file's limits count all the same
    store = SecretStore(file, environ)

    write(file, "token: {env: OTHER, agents: [somebody]}")
    assert "is not for the agent worker" in await refusal(store)
    write(file, "token: {env: OTHER, hosts: [elsewhere.test]}")
    assert "may not be sent to api.test" in await refusal(store)
    exposed = agent(hosts=(), paths=(), expose="env")
    assert "may not be sent to the container" in await refusal(store, exposed)
    write(file, "token: {env: OTHER, agents: [worker], hosts: [api.test]}")
    assert await value_of(store) == VALUE


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
async def test_a_file_that_others_can_write_is_not_believed(file: Path, mode: int) -> None:
    write(file, "token: {env: OTHER}", mode)
    assert "can be written by others" in await refusal(SecretStore(file, {"OTHER": VALUE}))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_file_of_somebody_else_is_not_believed(file: Path) -> None:
    write(file, "token: {env: OTHER}")
    os.chown(file, 12345, 12345)
    assert "belongs to another user" in await refusal(SecretStore(file, {"OTHER": VALUE}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"token: {VALUE}", "the secret itself does not belong here"),
        (f"- {VALUE}", "must be a mapping"),
        (f"token: {{env: OTHER}}\n{VALUE}: *{VALUE}", ":2 is not valid YAML"),
        (f"token: {{value: {VALUE}}}", "token: has something else than env, file, command"),
        ("token: {env: A, file: b}", "token: needs one of env, file and command"),
        (f"token: {{env: '{VALUE}'}}", "token.env: is not written as it should be"),
        ("token: {command: echo hello}", "token.command: must be a list"),
        ("token: {env: ANTHROPIC_API_KEY}", "pays for the model"),
        ("x" * (1024 * 1024 + 1), "longer than 1024 KiB"),
    ],
)
async def test_a_file_that_cannot_be_used_is_told_without_what_it_holds(
    file: Path, text: str, said: str
) -> None:
    write(file, text)
    assert said in await refusal(SecretStore(file, {}))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("short", "shorter than 8"),
        (f"{VALUE}\nX-Evil: 1", "no HTTP header can carry"),
        (f" {VALUE}", "no HTTP header can carry"),
        (f"{VALUE}é", "no HTTP header can carry"),
        (f"{VALUE}\0", "NUL"),
        ("x" * 65537, "longer than 64 KiB"),
    ],
)
async def test_a_value_that_cannot_be_carried_is_refused(file: Path, value: str, said: str) -> None:
    environ = {"ORCHESTRATOR_SECRET_TOKEN": value}
    assert said in await refusal(SecretStore(file, environ))


async def test_an_exposed_value_may_have_several_lines(file: Path) -> None:
    exposed = agent(hosts=(), paths=(), expose="env")
    environ = {"ORCHESTRATOR_SECRET_TOKEN": f"{VALUE}\n{VALUE}"}
    assert await value_of(SecretStore(file, environ), exposed) == f"{VALUE}\n{VALUE}"


async def test_a_failing_command_is_told_with_its_complaint_and_without_secrets(
    file: Path,
) -> None:
    write(file, printing(VALUE, f"sys.stderr.write('locked: {VALUE}')", "sys.exit(3)"))
    said = await refusal(SecretStore(file, {}))
    assert "failed with code 3: locked: [secret]" in said

    write(file, "token: {command: [/nowhere/vault]}")
    assert "'/nowhere/vault' cannot be started (No such file" in await refusal(
        SecretStore(file, {})
    )


async def test_a_command_that_prints_without_end_is_ended(file: Path) -> None:
    write(file, printing("", "[sys.stdout.write('x' * 65536) for _ in iter(int, 1)]"))
    assert "prints more than 64 KiB" in await refusal(SecretStore(file, {}))


async def test_a_command_that_waits_is_ended_with_what_it_started(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(secret_store, "COMMAND_SECONDS", 0.5)
    pid = tmp_path / "pid"
    write(file, f"token: {{command: [sh, -c, 'sleep 1000 & echo $! > {pid}; wait']}}")

    said = await refusal(SecretStore(file, dict(os.environ)))

    assert "'sh' was not done after" in said
    with anyio.fail_after(PATIENCE):
        while _runs(int(pid.read_text())):
            await anyio.lowlevel.checkpoint()


def _runs(pid: int) -> bool:
    try:
        return "(sleep) Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_command_has_no_terminal_and_none_of_our_secrets(file: Path) -> None:
    environ = {
        "ORCHESTRATOR_SECRET_OTHER": "other-secret",
        "ANTHROPIC_API_KEY": "sk-ant",
        "VISIBLE": "visible!",
    }
    write(
        file, printing("", "import os", "assert not sys.stdin.read()", "print(sorted(os.environ))")
    )
    names = await value_of(SecretStore(file, environ))
    assert "VISIBLE" in names
    assert "ORCHESTRATOR_SECRET_OTHER" not in names
    assert "ANTHROPIC_API_KEY" not in names


def test_variables_that_hold_secrets_are_not_there_for_an_agent_md(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_SECRET_TOKEN", VALUE)
    monkeypatch.setenv("ANTHROPIC_API_KEY", VALUE)
    assert VALUE not in environment().values()
    assert secret_environment()["ORCHESTRATOR_SECRET_TOKEN"] == VALUE
    assert "ANTHROPIC_API_KEY" not in secret_environment()

    settings = read_settings({"HOME": str(tmp_path)})
    assert settings.secrets_file == tmp_path / ".config/subagent-orchestrator/secrets.yaml"
    assert VALUE not in repr(SecretStore(settings.secrets_file, secret_environment()))


def test_a_settings_file_cannot_say_where_secrets_are(tmp_path: Path) -> None:
    (tmp_path / "orchestrator.yaml").write_text("secrets_file: mine.yaml\n")
    with pytest.raises(OperatorError, match="ORCHESTRATOR_SECRETS_FILE"):
        read_settings({"HOME": str(tmp_path)}, cwd=tmp_path)


async def test_a_secret_that_is_kept_in_two_places_is_refused_by_line(file: Path) -> None:
    write(file, f"token: {{env: OTHER}}\n{VALUE}: {{env: A}}\n{VALUE}: {{env: B}}\n")
    said = await refusal(SecretStore(file, {"OTHER": VALUE}))
    assert said == f"{file}:3: a key is given twice, first on line 2; remove one of them"

    write(file, "token:\n  env: OTHER\n  env: ANOTHER\n")
    assert f"{file}:3: a key is given twice" in await refusal(SecretStore(file, {"OTHER": VALUE}))
