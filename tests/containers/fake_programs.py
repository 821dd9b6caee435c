"""A few of Debian's programs as scripts for the fake runtime: just what the contract tests use."""

from __future__ import annotations

import re

import anyio

from orchestrator.containers.fake import FakeProcess, FakeProgram


async def _echo(p: FakeProcess) -> int:
    await p.stdout.write(" ".join(p.argv[1:]).encode() + b"\n")
    return 0


async def _cat(p: FakeProcess) -> int:
    for path in p.argv[1:]:
        if path not in p.files:
            await p.stderr.write(f"cat: {path}: No such file or directory\n".encode())
            return 1
        await p.stdout.write(p.files[path])
    if not p.argv[1:]:
        while data := await p.stdin.read():
            await p.stdout.write(data)
    return 0


async def _tee(p: FakeProcess) -> int:
    content = b""
    while data := await p.stdin.read():
        content += data
        await p.stdout.write(data)
    p.files[p.argv[1]] = content
    return 0


async def _sleep(p: FakeProcess) -> int:
    await anyio.sleep_forever()
    return 0


async def _yes(p: FakeProcess) -> int:
    while True:
        await p.stdout.write(b"y\n" * 512)


async def _false(p: FakeProcess) -> int:
    return 1


async def _curl(p: FakeProcess) -> int:
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/.*)", p.argv[-1])
    assert found is not None
    connection = p.connect(int(found[1]))
    await connection.write(f"GET {found[2]} HTTP/1.0\r\n\r\n".encode())
    answer = b""
    while data := await connection.read():
        answer += data
    connection.end()
    await p.stdout.write(answer.partition(b"\r\n\r\n")[2])
    return 0


PROGRAMS: dict[str, FakeProgram] = {
    "cat": _cat,
    "curl": _curl,
    "echo": _echo,
    "false": _false,
    "sleep": _sleep,
    "tee": _tee,
    "yes": _yes,
}
