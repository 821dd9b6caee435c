"""What may be removed, by value: never what a living orchestrator owns."""

from __future__ import annotations

import pytest

from orchestrator.containers.labels import ContainerInfo, ContainerKind, make_labels, read_info
from orchestrator.containers.owner import Owner
from orchestrator.containers.reaper import REAP_GRACE_SECONDS, why_reap
from orchestrator.errors import NameTaken
from orchestrator.settings import Settings

NOW = 1_000_000.0
LONG_PAST, SOON = NOW - REAP_GRACE_SECONDS - 1, NOW + 1


@pytest.mark.parametrize(
    ("kind", "status", "state", "deadline", "alive", "held", "why"),
    [
        ("disposable", "running", "ours", LONG_PAST, True, False, None),
        ("disposable", "running", "ours", SOON, False, False, "its orchestrator is gone"),
        ("disposable", "created", "ours", SOON, False, False, "its orchestrator is gone"),
        ("disposable", "exited", "ours", SOON, False, False, "its orchestrator is gone"),
        ("disposable", "running", "theirs", SOON, False, False, None),
        ("disposable", "running", "theirs", NOW - 1, False, False, None),
        ("disposable", "running", "theirs", LONG_PAST, False, False, "it is past its deadline"),
        ("disposable", "running", "theirs", 0.0, False, False, None),
        ("kept", "exited", "ours", 0.0, False, False, None),
        ("kept", "running", "ours", 0.0, False, True, None),
        ("kept", "created", "ours", 0.0, False, True, None),
        ("kept", "created", "ours", 0.0, False, False, "it was never started"),
        ("kept", "created", "theirs", 0.0, False, False, None),
    ],
)
def test_only_what_a_crash_left_is_removed(
    kind: ContainerKind,
    status: str,
    state: str,
    deadline: float,
    alive: bool,
    held: bool,
    why: str | None,
) -> None:
    info = ContainerInfo(
        id="1", name="n", status=status, kind=kind, state=state, owner="o", deadline=deadline
    )
    assert why_reap(info, now=NOW, our_state="ours", owner_alive=alive, held=held) == why


def test_labels_say_again_what_was_written_on_them() -> None:
    written = make_labels(
        state="s", owner="o", kind="kept", key="k", deadline=5, extra={"run": "r"}
    )
    listed = {"Id": "1", "Names": ["/n"], "State": "exited", "Created": 7}
    listed["Labels"] = {**written, "orchestrator.spec": "d"}

    assert read_info(listed) == ContainerInfo(
        id="1",
        name="n",
        status="exited",
        kind="kept",
        state="s",
        owner="o",
        key="k",
        created=7,
        deadline=5,
        labels={"run": "r"},
    )


def test_nobody_can_write_over_our_labels() -> None:
    sly = {"orchestrator.owner": "somebody else"}
    written = make_labels(state="s", owner="o", kind="kept", extra=sly)
    assert written["orchestrator.owner"] == "o"


def test_a_container_without_our_labels_is_not_ours() -> None:
    assert read_info({"Id": "1", "Labels": None}) is None
    assert read_info({"Id": "1", "Labels": {"orchestrator.state": "s"}}) is None


def test_an_owner_is_alive_as_long_as_it_holds_its_lock(settings: Settings) -> None:
    with Owner(settings.state_dir) as one:
        with Owner(settings.state_dir) as other:
            assert one.state == other.state
            assert one.alive(other.id)
            assert other.alive(one.id)
            assert one.alive(one.id)
        assert not one.alive(other.id)
        assert not one.alive("../../etc/passwd")
        assert not one.alive("")


def test_a_kept_container_is_held_by_one_at_a_time(settings: Settings) -> None:
    with Owner(settings.state_dir) as one, Owner(settings.state_dir) as other:
        lock = one.hold("box")
        assert other.held("box")
        with pytest.raises(NameTaken, match="box is in use"):
            other.hold("box")
        lock.release()
        assert not other.held("box")
        other.hold("box").release()
