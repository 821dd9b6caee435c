"""Attacks by what lies in a workspace, or is named as one: sockets, credentials, secrets' files."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import anyio
import pytest

from orchestrator.containers import mounts
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import Bind, ContainerSpec, Launch
from orchestrator.errors import ApplyRefused, MountRefused
from orchestrator.settings import CREDENTIAL_FOLDER_VARIABLES, read_settings
from orchestrator.state import mount_policy
from orchestrator.workspace.changes.collected import make_folder
from orchestrator.workspace.kept import Kept
from tests.attacks.exchanging import tries
from tests.attacks.listening import ANSWER, TALK, Host
from tests.attacks.mark import attack
from tests.attacks.racing import Covering, Mounting, Remembering, exchanging
from tests.attacks.rig import PATIENCE
from tests.attacks.spoils import make_project, work
from tests.engine.harness import Harness
from tests.workspace.trees import make

RACE_SECONDS = 60


def talk(*names: str) -> str:
    """A script that talks to these, below the workspace."""
    told = base64.b64encode(TALK.encode()).decode()
    places = " ".join(f"/workspace/{name}" for name in names)
    return f"echo {told} | base64 -d > /tmp/talk.py; python3 /tmp/talk.py {places}"


@attack(
    "network",
    "talk to a program of the host by its socket or FIFO in a mounted workspace, read-only or not",
    "ECONNREFUSED, and /dev/null: each is covered; nothing is heard outside; the result says so",
)
@pytest.mark.parametrize("mode", ["ro", "rw"])
async def test_no_socket_of_a_workspace_leads_out(harness: Harness, mode: str) -> None:
    project, host = make_project(harness._folder), Host()
    names = ("top.sock", "folder/deep.sock", ".git/fsmonitor.sock", "folder/in.fifo")
    with (
        host.listening(project / names[0]),
        host.listening(project / names[1]),
        host.listening(project / names[2]),
        host.fifo(project / names[3]),
    ):
        spoils = await work(harness, talk(*names), project=project, workspace=mode)

    said = str(spoils.result.result)
    assert spoils.result.status == "completed", spoils.result
    assert said.count("Connection refused") == 3, said
    assert ANSWER not in said
    assert host.heard == []
    assert all(f"/workspace/{name}" in spoils.told for name in names), spoils.told
    assert {path.name for path in (project / "folder").iterdir()} == {"file", "in.fifo"}


@attack(
    "network",
    "move the directory of a covered socket, link to it, or unmount what covers it",
    "the cover moves along, a link is refused, and nothing is heard outside",
)
async def test_a_cover_cannot_be_taken_off(harness: Harness) -> None:
    project, host = make_project(harness._folder), Host()
    script = (
        "cd /workspace; mv folder moved; mv moved/deep.sock moved/other.sock; "
        "rm -f moved/deep.sock; ln moved/deep.sock linked.sock; umount moved/deep.sock; "
        + talk("moved/deep.sock", "moved/other.sock", "linked.sock")
    )
    with host.listening(project / "folder/deep.sock"):
        spoils = await work(harness, script, project=project, workspace="rw")
        said = str(spoils.result.result)
        assert spoils.result.status == "completed", spoils.result
        assert "Connection refused" in said, said
        assert ANSWER not in said
        assert host.heard == []
        assert not (project / "linked.sock").exists()
        (project / "moved").rename(project / "folder")


@attack(
    "network",
    "wait for a program of the host to make its socket anew, or another one, in a workspace",
    "it can be talked to, and is told: the result's warnings name each",
)
async def test_a_socket_that_appears_later_is_told(harness: Harness) -> None:
    project, host = make_project(harness._folder), Host()
    with host.listening(project / "folder/old.sock"):
        # Made by the agent, in the place of a program of the host that is started meanwhile.
        script = (
            'python3 -c \'import os, socket; os.chdir("/workspace"); '
            'socket.socket(socket.AF_UNIX).bind("new.sock")\'; mkfifo /workspace/new.fifo'
        )
        spoils = await work(harness, script, project=project, workspace="rw")
    assert spoils.result.status == "completed", spoils.result
    (told,) = [line for line in spoils.result.warnings if "appeared while" in line]
    assert "/workspace/new.sock (socket)" in told
    assert "/workspace/new.fifo (FIFO)" in told
    assert "old.sock" not in told


@attack(
    "network",
    "be called again in a session, after a program of the host has made its covered socket anew",
    "the session goes on in a container in which the new one is covered too",
)
async def test_a_session_does_not_keep_a_socket_in_reach(harness: Harness) -> None:
    project, host = make_project(harness._folder), Host()
    pipe = project / "in.fifo"
    script = talk("top.sock", pipe.name) + "; echo x >> ~/calls; cat ~/calls"
    said = []
    async with harness.sessions:
        for _ in range(2):
            with host.listening(project / "top.sock"), host.fifo(pipe):
                spoils = await work(harness, script, project=project, workspace="ro", session=True)
            pipe.unlink()
            assert spoils.result.status == "completed", spoils.result
            said.append(str(spoils.result.result))
        for row in await harness.sessions.list():
            await harness.sessions.remove(row.key)
    assert ["Connection refused" in text for text in said] == [True, True], said
    assert "x\nx\n" in said[1]  # and it is the same session
    assert host.heard == []


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of one who has secrets in files."""
    home = tmp_path / "home"
    for folder in ("work/project/src", "work/other", ".config/subagent-orchestrator"):
        (home / folder).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return home


def judge(home: Path, folder: Path, *, read_only: bool = True, roots: str = "") -> str:
    """What the policy of one who works in ~/work/other says to a workspace; "" if it is one."""
    environ = {"HOME": str(home), "ORCHESTRATOR_ALLOWED_ROOTS": roots}
    settings = read_settings(environ, home / "work/other")
    try:
        mount_policy(settings).judged(folder, read_only=read_only)
    except MountRefused as exc:
        return str(exc)
    return ""


def keep_secret(home: Path, entry: dict[str, object]) -> None:
    file = home / ".config/subagent-orchestrator/secrets.yaml"
    file.write_text(json.dumps({"github-token": entry}))
    file.chmod(0o600)


@attack(
    "secret hunting",
    "be called with the directory of a secret's own file as workspace, or with one above it",
    "refused, wherever the file lies, by its own name and by that of a link to it",
)
@pytest.mark.parametrize(
    ("file", "workspaces"),
    [
        ("~/.secrets/github", [".secrets"]),
        ("~/vault/github", ["vault"]),
        ("~/work/project/conf/token", ["work/project", "work", "work/project/conf"]),
        ("~/work/project/link", ["work/project", "vault"]),
        ("../../work/project/token", ["work/project"]),
    ],
)
def test_no_secrets_file_is_in_a_workspace(person: Path, file: str, workspaces: list[str]) -> None:
    held = person / ".config/subagent-orchestrator" / Path(file).expanduser()
    held.parent.mkdir(parents=True, exist_ok=True)
    (person / "vault").mkdir(exist_ok=True)
    if file.endswith("link"):
        (person / "vault/real").write_text("THE-TOKEN")
        held.symlink_to(person / "vault/real")
    else:
        held.write_text("THE-TOKEN")
    keep_secret(person, {"file": file, "hosts": ["api.github.com"]})
    for name in workspaces:
        said = judge(person, person / name)
        assert "no agent may see it" in said or "keep credentials" in said, (name, said)
    assert judge(person, person / "work/project/src") == ""


@attack(
    "secret hunting",
    "write to a workspace that holds the program that prints a secret, or the file that it reads",
    "refused: an agent that could write it would have the host run its own",
)
@pytest.mark.parametrize(
    "command",
    [["{}"], ["sh", "{}"], ["cat", "{}"], ["sops", "--file={}"], ["../../work/project/bin/it"]],
)
def test_nothing_that_makes_a_secret_is_in_a_workspace(person: Path, command: list[str]) -> None:
    program = person / "work/project/bin/it"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho THE-TOKEN\n")
    keep_secret(person, {"command": [word.format(program) for word in command]})
    for name in ("work", "work/project", "work/project/bin"):
        for read_only in (True, False):
            assert "secrets are kept in or made by" in judge(
                person, person / name, read_only=read_only
            )
    assert judge(person, person / "work/project/src", read_only=False) == ""


@attack(
    "secret hunting",
    "be called with a place where programs keep credentials: keyrings, browsers, mail, clouds",
    "refused: below a home, nothing that begins with a dot, nor what else is known",
)
@pytest.mark.parametrize(
    "name",
    [
        *(".ssh", ".secrets", ".local/share/keyrings", ".local/share", ".mozilla/firefox"),
        *(".thunderbird", ".cargo", ".npm", ".gem", ".terraform.d", ".codex", ".gemini"),
        *("snap/firefox/common", ".var/app", ".cache/pip", ".m2", ".vscode-server", ".Mozilla"),
        *(".rd", ".lima/default/sock", ".colima/work", ".orbstack/run", ".podman"),
    ],
)
def test_no_place_for_credentials_is_a_workspace(person: Path, name: str) -> None:
    (person / name).mkdir(parents=True)
    assert "credentials" in judge(person, person / name)
    (person / "work/link").symlink_to(person / name)
    assert "credentials" in judge(person, person / "work/link")


@attack(
    "secret hunting",
    "be called with a place for credentials that the person has moved by a variable",
    "refused, and so is a directory that holds it",
)
@pytest.mark.parametrize("variable", CREDENTIAL_FOLDER_VARIABLES)
def test_a_place_that_was_moved_is_no_workspace(
    person: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (person / "moved/away/deep").mkdir(parents=True)
    assert judge(person, person / "moved/away") == ""
    monkeypatch.setenv(variable, str(person / "moved/away"))
    for name in ("moved", "moved/away", "moved/away/deep"):
        assert "no agent may see it" in judge(person, person / name)
    monkeypatch.setenv(variable, str(person))  # which would close everything
    assert judge(person, person / "work/project") == ""


@attack(
    "secret hunting",
    "have a directory named as allowed root, and ask for the credentials that lie in it or beside",
    "only what was named is shown, and never what is known to hold credentials",
)
def test_an_allowed_root_opens_itself_alone(person: Path) -> None:
    for name in (".local/share/keyrings", ".local/share/mine", ".dotfiles/vim", ".ssh/project"):
        (person / name).mkdir(parents=True)
    roots = f"{person}/.local:{person}/.dotfiles/vim:{person}/.ssh/project:{person}"
    said = {
        name: judge(person, person / name, roots=roots)
        for name in (
            *(".local/share/mine", ".dotfiles/vim"),
            *(".local", ".local/share", ".local/share/keyrings", ".dotfiles", ".ssh/project"),
        )
    }
    assert [name for name, why in said.items() if not why] == [".local/share/mine", ".dotfiles/vim"]


@attack(
    "secret hunting",
    "be called with another user's home, or with what holds it, below an allowed root",
    "refused: an account's home is one, whichever user runs the orchestrator",
)
def test_the_homes_of_others_are_homes(person: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = person.parent / "homes/bob"
    for name in (".npm", "project"):
        (other / name).mkdir(parents=True)
    monkeypatch.setattr(mounts, "homes_of_people", lambda: (other,))
    roots = str(person.parent)
    for refused in (other.parent, other, other / ".npm"):
        assert judge(person, refused, roots=roots), refused
    assert judge(person, other / "project", roots=roots) == ""


RACES = 50
"""Tries of each race here; tests/soak has the long ones."""


@attack(
    "git",
    "exchange the directory of a repository with a link to another, before its .git is covered",
    "refused, or it is the .git that was found: each mount is compared by device and inode",
)
async def test_the_git_that_was_found_is_the_one_that_is_mounted(tmp_path: Path) -> None:
    ground = Mounting(tmp_path)
    with exchanging(ground.project / "sub", ground.link):
        seen = await tries(RACES, ground.mounted, {"mine", "refused"}, RACE_SECONDS)
    assert {*seen} == {"mine", "refused"}


@attack(
    "files, links and archives",
    "exchange a workspace, between the look for sockets and the mount, with one that has some",
    "refused, or covered: what is mounted is what was looked through",
)
async def test_what_was_looked_through_is_what_is_mounted(tmp_path: Path) -> None:
    ground = Covering(tmp_path)
    with exchanging(ground.project, ground.other):
        seen = await tries(RACES, ground.mounted, {"covered", "refused"}, RACE_SECONDS)
    assert "OPEN" not in seen


@attack(
    "files, links and archives",
    "exchange a workspace with another user's after it was judged, to be that user inside",
    "refused, or the user whom the judged one belongs to",
)
async def test_an_agent_is_the_user_whom_its_workspace_belongs_to(tmp_path: Path) -> None:
    ground = Covering(tmp_path)
    with exchanging(ground.project, ground.other):
        seen = await tries(RACES, ground.owned, {"its own", "refused"}, RACE_SECONDS)
    assert {*seen} == {"its own", "refused"}


@attack(
    "files, links and archives",
    "exchange the agent's folder with a link to another while its memory.md is written back",
    "it is kept in the folder that it was read from, or put aside; the other is as it was",
)
async def test_memory_goes_back_to_where_it_was_read(tmp_path: Path) -> None:
    ground = Remembering(tmp_path)
    try:
        with exchanging(ground.agent, ground.link):
            seen = await tries(RACES, ground.kept, {"kept", "aside"}, RACE_SECONDS)
    finally:
        ground.close()
    assert {*seen} == {"kept", "aside"}


@attack(
    "planted settings",
    "leave a link in the place of a run's changes, or of where they are written",
    "refused: nothing is read, written or removed through it",
)
@pytest.mark.parametrize("name", ["r1", "r1.new"])
def test_no_link_stands_for_changes(tmp_path: Path, name: str) -> None:
    victim = make(tmp_path / "victim", {"objects/dear": "x", "manifest.json": "{}"})
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / name).symlink_to(victim)
    kept = Kept(tmp_path / "changes")
    with pytest.raises(ApplyRefused, match="is a link, which no orchestrator makes"):
        make_folder(kept.new("r1"))
    with pytest.raises(ApplyRefused, match="is a link, which no orchestrator makes"):
        kept.remove("r1")
    assert (victim / "objects/dear").read_text() == "x"


EVIL_LIBRARY = """
import posix
fd = posix.open("/workspace/ran", posix.O_CREAT | posix.O_WRONLY, 0o666)
posix.write(fd, str(posix.getuid()).encode())
"""
"""What every Python imports first, PID 1 too."""

LED_ASTRAY = "mv proj/sub away; ln -s ../usr/lib/python3.11 proj/sub; echo done"
"""On the host that is beside the workspace; in a container, the library of PID 1."""


@attack(
    "images",
    "with a directory above another agent's workspace, exchange a folder that is held in it for a "
    "link, so that one's own files are mounted over those of PID 1",
    "refused: nothing is mounted inside a directory while an agent may write to one above it",
)
async def test_no_agent_leads_mounts_of_another_over_pid_1(
    engine: DockerRuntime, image: str, ground: Path, tmp_path: Path
) -> None:
    home = ground / tmp_path.name
    project = home / "proj"
    make(
        home, {"proj/sub/.git/HEAD": "x", "usr/lib/python3.11/encodings/__init__.py": EVIL_LIBRARY}
    )
    for path in (home, *home.rglob("*")):
        os.chown(path, 1000, 1000)
    project.chmod(0o777)
    spec = ContainerSpec(image=image)
    held = (Bind(source=str(project), read_only=False), _held(project, "sub"))
    victim = spec.model_copy(update={"mounts": held})
    writer = spec.model_copy(update={"mounts": (Bind(source=str(home), read_only=False),)})
    with anyio.fail_after(PATIENCE):
        async with engine.open(writer) as above:
            with pytest.raises(MountRefused, match="while another agent may write to"):
                async with engine.open(victim):
                    pass
            plain = spec.model_copy(update={"mounts": held[:1]})
            async with engine.open(plain), engine.open(plain):
                pass  # nothing is mounted inside of it
            moved = await above.run(Launch(argv=("sh", "-c", LED_ASTRAY), cwd="/workspace"))
            assert moved.stdout == b"done\n"
        with pytest.raises(MountRefused):  # what is there now is another one
            async with engine.open(victim):
                pass
    assert not (project / "ran").exists()


def _held(project: Path, name: str) -> Bind:
    status = (project / name).lstat()
    identity = f"{status.st_dev}:{status.st_ino}"
    target = f"/workspace/{name}"
    return Bind(source=str(project / name), target=target, read_only=False, identity=identity)
