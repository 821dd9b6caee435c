"""Webhooks: every message is delivered, signed, once by whichever process; over crashes and
refusals.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.tasks import webhook_delivery
from orchestrator.engine.tasks.webhook_delivery import (
    CLAIM_SECONDS,
    WEBHOOK_RETRY_SECONDS,
    WebhookDelivery,
)
from orchestrator.errors import OperatorError
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.webhook_post import post_message
from orchestrator.settings import Webhook
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store

pytestmark = pytest.mark.anyio

KEY = bytes(range(32))
SECRET = SecretStr(f"whsec_{base64.b64encode(KEY).decode()}")


class Receiver(ThreadingHTTPServer):
    """A receiver on the loopback, which believes nothing that is not signed."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ReceiverHandler)
        self.answers: list[int] = []
        self.heard: list[tuple[str, dict[str, object]]] = []

    @property
    def hook(self) -> Webhook:
        return Webhook(name="ops", url=f"http://127.0.0.1:{self.server_port}/in", private=True)


class ReceiverHandler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        message_id, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = b".".join((message_id.encode(), at.encode(), body))
        wanted = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
        status = self.server.answers.pop(0) if self.server.answers else 204
        if self.headers["webhook-signature"].split(" ") != [f"v1,{wanted}"]:
            status = 401
        self.server.heard.append((message_id, json.loads(body)))
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/elsewhere")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Clock:
    """Time as the test has it pass."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(tmp_path / "runs.sqlite", "a test")
    yield store
    store.close()


def delivery_of(store: Store, hook: Webhook, clock: Clock) -> WebhookDelivery:
    dialer = Dialer(environ={})

    async def post(hook: Webhook, headers: object, body: bytes) -> tuple[int, str]:
        return await post_message(hook, dialer, headers, body)  # type: ignore[arg-type]

    return WebhookDelivery([hook], {hook.name: SECRET}, store.webhooks, "/home/me/p", post, clock)


async def a_run(store: Store, *, depth: int = 0, project: str = "/home/me/p") -> Task:
    task = Task(agent="worker", prompt="a secret task", project=project, depth=depth)
    await store.add_run(task)
    await store.set_status(task.run_id, "running")
    return task


async def end(store: Store, task: Task) -> None:
    result = RunResult(
        run_id=task.run_id, agent=task.agent, caller=task.caller, status="completed", reason="ok"
    )
    assert await store.finish(result)


async def test_a_message_is_made_with_what_it_tells_of_and_outlives_the_process(
    tmp_path: Path, receiver: Receiver
) -> None:
    clock = Clock()
    first = Store(tmp_path / "runs.sqlite", "one")
    await delivery_of(first, receiver.hook, clock).announce()
    task = await a_run(first)
    exchanges = Exchanges(first)
    await exchanges.ask(Question(message_id="m1", run_id=task.run_id, question="a secret"))
    await exchanges.request(Approval(call_id="c1", run_id=task.run_id, tool="Bash"))
    await end(first, task)
    await end_errand(first)
    first.close()  # and nothing was delivered

    second = Store(tmp_path / "runs.sqlite", "two")
    delivery = delivery_of(second, receiver.hook, clock)
    for _ in range(3):
        assert await delivery.deliver_next(receiver.hook) is not None
    assert await delivery.deliver_next(receiver.hook) is None
    said = [body for _, body in receiver.heard]
    assert [each["type"] for each in said] == ["run.waiting", "run.waiting", "run.ended"]
    whose = {"run_id": task.run_id, "agent": "worker", "caller": "main", "project": "p"}
    assert said[0]["data"] == {**whose, "kind": "question", "message_id": "m1"}
    assert said[1]["data"] == {**whose, "kind": "approval", "call_id": "c1", "tool": "Bash"}
    ended = said[2]["data"]
    assert isinstance(ended, dict)
    assert (ended["status"], ended["reason"]) == ("completed", "ok")
    assert "secret" not in json.dumps(said)
    assert {row.state for row in await second.webhooks.deliveries(9)} == {"delivered"}
    second.close()


async def end_errand(store: Store) -> None:
    """A run that an agent asked for: nobody outside is told."""
    await end(store, await a_run(store, depth=1))


async def test_what_fails_is_tried_again_later_and_later(store: Store, receiver: Receiver) -> None:
    clock = Clock()
    delivery = delivery_of(store, receiver.hook, clock)
    await delivery.announce()
    await end(store, await a_run(store))
    receiver.answers = [500, 302, *[503] * (len(WEBHOOK_RETRY_SECONDS) - 1)]
    for seconds in WEBHOOK_RETRY_SECONDS:
        assert await delivery.deliver_next(receiver.hook) is not None
        clock.now += seconds - 1
        assert await delivery.deliver_next(receiver.hook) is None
        clock.now += 1
    (row,) = await store.webhooks.deliveries(9)
    assert (row.state, row.attempts) == ("pending", len(WEBHOOK_RETRY_SECONDS))
    assert await delivery.deliver_next(receiver.hook) is not None
    (row,) = await store.webhooks.deliveries(9)
    assert (row.state, row.answer) == ("failed", "it answered 503")
    assert len({message_id for message_id, _ in receiver.heard}) == 1
    assert len(receiver.heard) == len(WEBHOOK_RETRY_SECONDS) + 1


async def test_a_receiver_that_is_gone_is_left_alone_until_it_is_enabled(
    store: Store, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    delivery = delivery_of(store, receiver.hook, Clock())
    await delivery.announce()
    await end(store, await a_run(store))
    await end(store, await a_run(store))
    receiver.answers = [410]
    assert await delivery.deliver_next(receiver.hook) is not None
    assert await delivery.deliver_next(receiver.hook) is None
    await delivery.announce()  # a restart does not forget it
    await end(store, await a_run(store))
    (row,) = await store.webhooks.list()
    assert ("410" in row.disabled, row.pending, row.failed) == (True, 0, 2)
    assert "webhook ops is off" in caplog.text
    assert await store.webhooks.enable("ops")
    await end(store, await a_run(store))
    assert await delivery.deliver_next(receiver.hook) is not None
    assert len(receiver.heard) == 2


async def test_of_two_processes_one_delivers_and_a_dead_ones_claim_ends(
    tmp_path: Path, receiver: Receiver
) -> None:
    clock = Clock()
    stores = [Store(tmp_path / "runs.sqlite", owner) for owner in ("one", "two")]
    deliveries = [delivery_of(each, receiver.hook, clock) for each in stores]
    await deliveries[0].announce()
    for _ in range(20):
        await end(stores[0], await a_run(stores[0]))

    async def all_of(delivery: WebhookDelivery) -> None:
        while await delivery.deliver_next(receiver.hook) is not None:
            pass

    async with anyio.create_task_group() as group:
        for each in deliveries:
            group.start_soon(all_of, each)
    ids = [message_id for message_id, _ in receiver.heard]
    assert (len(ids), len(set(ids))) == (20, 20)

    await end(stores[0], await a_run(stores[0]))
    claimed = await stores[0].webhooks.claim(
        "ops", "/home/me/p", clock.now, clock.now + CLAIM_SECONDS
    )
    assert claimed is not None  # and its process dies
    assert await deliveries[1].deliver_next(receiver.hook) is None
    clock.now += CLAIM_SECONDS
    again = await deliveries[1].deliver_next(receiver.hook)
    assert again is not None
    assert again.message_id == claimed.message_id
    assert not await stores[0].webhooks.settle(claimed, "pending", "too late")
    for store in stores:
        store.close()


async def test_a_webhook_is_told_of_the_projects_that_announced_it(
    store: Store, receiver: Receiver
) -> None:
    delivery = delivery_of(store, receiver.hook, Clock())
    await delivery.announce()
    other = await a_run(store, project="/home/me/other")
    await Exchanges(store).ask(Question(message_id="m1", run_id=other.run_id, question="?"))
    await Exchanges(store).request(Approval(call_id="c1", run_id=other.run_id, tool="Bash"))
    await end(store, other)
    assert await store.webhooks.deliveries(9) == ()
    await store.webhooks.announce([receiver.hook], "/home/me/other")
    await end(store, await a_run(store, project="/home/me/other"))
    assert await delivery.deliver_next(receiver.hook) is None  # its own server delivers it
    (message,) = await store.webhooks.deliveries(9)
    assert message.project == "/home/me/other"


async def test_a_fault_ends_neither_delivery_nor_its_server(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook_delivery, "DELIVERY_FAILED_SECONDS", 0.0)
    tried: list[Webhook] = []
    again = anyio.Event()

    async def fail(hook: Webhook, *_: object) -> tuple[int, str]:
        tried.append(hook)
        if len(tried) > 1:
            again.set()
        raise RuntimeError("a fault of ours")

    hook = Webhook(name="ops", url="https://example.com/")
    await store.webhooks.announce([hook], "/home/me/p")
    for _ in range(2):
        await end(store, await a_run(store))
    delivery = WebhookDelivery([hook], {"ops": SECRET}, store.webhooks, "/home/me/p", fail)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(delivery.serve)
            await again.wait()
            group.cancel_scope.cancel()
    assert "webhook ops cannot be looked after" in caplog.text


async def test_an_inner_address_is_reached_only_if_the_operator_says_so(
    receiver: Receiver,
) -> None:
    hook = Webhook(name="ops", url=f"https://localhost:{receiver.server_port}/")
    status, why = await post_message(hook, Dialer(environ={}), {}, b"{}")
    assert (status, "blocked" in why) == (0, True)
    with pytest.raises(ValueError, match="begins with https://"):
        Webhook(name="ops", url=receiver.hook.url)
    with pytest.raises(ValueError, match="no password"):
        Webhook(name="ops", url="https://me:secret@example.com/")
    assert receiver.heard == []


@pytest.mark.parametrize("secret", [None, "whsec_short", "no-prefix", f"whsec_{'!' * 40}"])
async def test_a_webhook_without_a_good_secret_is_refused(store: Store, secret: str | None) -> None:
    hook = Webhook(name="ops", url="https://example.com/")
    keys = {} if secret is None else {"ops": SecretStr(secret)}

    async def never(*_: object) -> tuple[int, str]:
        raise AssertionError

    with pytest.raises(OperatorError, match="ORCHESTRATOR_WEBHOOK_SECRETS") as refused:
        WebhookDelivery([hook], keys, store.webhooks, "/p", never)
    assert secret is None or secret not in str(refused.value)
