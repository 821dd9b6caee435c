"""Every place that a path leads through."""

from __future__ import annotations

from pathlib import Path

from orchestrator.links import led_through


def test_each_link_on_the_way_is_a_place_and_so_is_the_end(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    (top / "real/deep").mkdir(parents=True)
    (top / "one").symlink_to("real")
    (top / "real/two").symlink_to(top / "one/deep")
    assert led_through(top / "one/two/new") == (
        top / "one",
        top / "real/two",
        top / "real/deep/new",
    )
    assert led_through(top / "real/../real/deep") == (top / "real/deep",)
    assert led_through(top / "nothing/../x") == (top / "x",)


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    (top / "a").symlink_to("b")
    (top / "b").symlink_to("a")
    assert {top / "a", top / "b"} <= set(led_through(top / "a/x"))
