"""What has been trusted, on the disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import OperatorError
from orchestrator.store.trust_book import TrustBook, which_project
from orchestrator.trust import Extent, Grant, TrustedProject

EXTENT = Extent(grants=(Grant(kind="network", what="a.org"),))


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    folder = tmp_path / "project/agents"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def book(tmp_path: Path) -> TrustBook:
    return TrustBook(tmp_path / "state/trust")


def trusted(agents: Path) -> TrustedProject:
    return which_project(agents).trusted_with({"a": EXTENT})


def the_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "state/trust").iterdir()
    return file


def test_what_is_kept_is_found_until_it_is_forgotten(book: TrustBook, agents: Path) -> None:
    assert (book.of(agents), book.all(), book.forget(agents)) == (None, (), False)
    project = trusted(agents)
    book.keep(project)
    assert book.of(agents) == project
    assert book.all() == (project,)
    less = project.model_copy(update={"agents": {}})
    book.keep(less)
    assert book.of(agents) == less
    assert book.of(agents.parent) is None
    assert book.forget(agents) is True
    assert book.of(agents) is None


def test_it_is_the_users_alone(book: TrustBook, agents: Path, tmp_path: Path) -> None:
    book.keep(trusted(agents))
    assert the_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert the_file(tmp_path).parent.stat().st_mode & 0o777 == 0o700


def test_agents_that_a_checkout_makes_anew_stay_trusted(book: TrustBook, agents: Path) -> None:
    (agents.parent / ".git").mkdir()
    book.keep(trusted(agents))
    agents.rename(agents.with_name("old"))
    agents.mkdir()
    assert book.of(agents) is not None
    (agents / ".git").write_text("gitdir: ../elsewhere")  # but not another repository's
    assert book.of(agents) is None


@pytest.mark.parametrize("of_repository", [True, False], ids=["repository", "folder"])
def test_agents_that_are_in_no_repository_but_their_own_are_not_trusted_when_made_anew(
    book: TrustBook, agents: Path, of_repository: bool
) -> None:
    if of_repository:
        (agents / ".git").mkdir()
    book.keep(trusted(agents))
    assert book.of(agents) is not None
    agents.rename(agents.with_name("old"))
    agents.mkdir()
    (agents.parent / ".git").mkdir()  # whatever is there by now
    assert book.of(agents) is None


def test_a_repository_that_is_made_of_a_trusted_folder_stays_trusted(
    book: TrustBook, agents: Path
) -> None:
    book.keep(trusted(agents))
    (agents.parent / ".git").mkdir()
    assert book.of(agents) is not None


@pytest.mark.parametrize("removed", [False, True], ids=["moved", "removed"])
def test_a_project_in_the_place_of_another_is_not_trusted(
    book: TrustBook, agents: Path, removed: bool
) -> None:
    (agents.parent / ".git").mkdir()
    book.keep(trusted(agents))
    if removed:  # then the filesystem may give its number to the new one
        shutil.rmtree(agents.parent)
    else:
        agents.parent.rename(agents.parent.with_name("old"))
    agents.mkdir(parents=True)
    (agents.parent / ".git").mkdir()
    assert book.of(agents) is None


def test_what_an_earlier_version_trusted_is_trusted_where_a_repository_holds_it(
    book: TrustBook, agents: Path
) -> None:
    known = trusted(agents)
    book.keep(known.model_copy(update={"made": "", "own": ""}))
    assert book.of(agents) is None  # by itself: nothing says that it is the same
    (agents.parent / ".git").mkdir()
    assert book.of(agents) is not None


def test_a_file_that_somebody_else_could_have_written_is_refused(
    book: TrustBook, agents: Path, tmp_path: Path
) -> None:
    book.keep(trusted(agents))
    file = the_file(tmp_path)
    good = file.read_text()
    file.chmod(0o622)
    with pytest.raises(OperatorError, match="another user can write to it; remove it"):
        book.of(agents)
    file.unlink()
    (tmp_path / "elsewhere").write_text(good)
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OperatorError, match="cannot be used: Too many levels of symbolic links"):
        book.of(agents)
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(OperatorError, match="not a regular file"):
        book.of(agents)
    file.unlink()
    file.write_text("{}")
    with pytest.raises(OperatorError, match="not what an orchestrator of this version writes"):
        book.of(agents)


def test_a_link_in_the_place_of_the_folder_is_not_followed(
    book: TrustBook, agents: Path, tmp_path: Path
) -> None:
    book.keep(trusted(agents))
    folder = tmp_path / "state/trust"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OperatorError, match="cannot be used: Not a directory"):
        book.of(agents)


def test_more_than_could_be_read_again_is_not_written(book: TrustBook, agents: Path) -> None:
    grants = tuple(Grant(kind="image", what=f"{n}" * 1000) for n in range(1, 3000))
    project = trusted(agents).model_copy(update={"agents": {"a": Extent(grants=grants)}})
    with pytest.raises(OperatorError, match="want more than can be written down"):
        book.keep(project)
    assert book.of(agents) is None
