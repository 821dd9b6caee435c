"""`orchestrator webhooks`, with a receiver on the loopback."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.settings import read_settings
from orchestrator.state import open_store
from orchestrator.surfaces.cli.main import main
from tests.engine.tasks.test_webhooks import SECRET, Receiver, receiver

__all__ = ["receiver"]


def command(*args: str) -> object:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    return ended.value.code


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> Receiver:
    """The operator names a receiver."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config" / "subagent-orchestrator"
    config.mkdir(parents=True)
    hook = receiver.hook.model_dump(mode="json")
    (config / "config.yaml").write_text(json.dumps({"webhooks": [hook]}))
    (config / "config.yaml").chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ORCHESTRATOR_WEBHOOK_SECRETS", f"ops={SECRET.get_secret_value()}")
    return receiver


def test_a_webhook_is_tried_listed_and_on_again(
    told: Receiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("webhooks", "list") == 0
    assert "no webhook is known" in capsys.readouterr().out
    assert command("webhooks", "test", "ops") == 0
    assert capsys.readouterr().out == "ops: it answered 204\n"
    ((_, said),) = told.heard
    assert (said["type"], said["data"]) == ("webhook.test", {"webhook": "ops"})
    told.answers = [500]
    assert command("webhooks", "test", "ops") != 0
    assert "has not taken it: it answered 500" in capsys.readouterr().err
    assert command("webhooks", "test", "other") != 0
    assert "there are: ops" in capsys.readouterr().err

    async def happen() -> None:
        settings = read_settings()
        with open_store(settings) as store:
            await store.webhooks.announce(settings.webhooks, "/p")
            task = Task(agent="worker", prompt="go", project="/p")
            await store.add_run(task)
            await store.set_status(task.run_id, "running")
            whose = {"run_id": task.run_id, "agent": "worker", "caller": "main"}
            await store.finish(RunResult(**whose, status="failed", reason="deadline"))
            await store.webhooks.disable("ops", "it answered 410")

    anyio.run(happen)
    assert command("webhooks", "list") == 0
    shown = capsys.readouterr().out
    assert "off: it answered 410" in shown
    assert "run.ended" in shown
    assert command("webhooks", "enable", "ops") == 0
    capsys.readouterr()
    assert command("webhooks", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["disabled"]) for row in found["webhooks"]] == [("ops", "")]
    assert found["deliveries"][0]["state"] == "failed"
    assert command("webhooks", "remove", "ops") == 0
    assert command("webhooks", "remove", "ops") != 0
    monkeypatch.setenv("ORCHESTRATOR_WEBHOOK_SECRETS", "ops=whsec_short")
    capsys.readouterr()
    assert command("webhooks", "test", "ops") != 0
    assert "whsec_short" not in capsys.readouterr().err


def test_no_project_names_a_webhook(told: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    hook = told.hook.model_dump(mode="json")
    Path("orchestrator.yaml").write_text(json.dumps({"webhooks": [hook]}))
    assert command("webhooks", "test", "ops") != 0
    assert "decides over this machine" in capsys.readouterr().err
