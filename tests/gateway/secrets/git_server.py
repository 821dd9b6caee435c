"""HTTPS servers for tests: one that does what a test says, and git's own with a token in front."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio.to_thread

from orchestrator.gateway.egress.dial import Dialer

NAMES = ("git.test", "other.test")
"""What the certificate is for."""

PIECE = 64 * 1024


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


class Exchange(BaseHTTPRequestHandler):
    """One request; a test's function answers it."""

    server: _Server

    def handle_one_request(self) -> None:
        with suppress(OSError):  # whoever asked went away
            super().handle_one_request()

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        self.received = Received(self.command, self.path, headers)
        self.server.https.requests.append(self.received)
        self.close_connection = True
        self.server.https.respond(self)

    def body(self) -> Iterator[bytes]:
        """The request's body in pieces, whichever way its length is told."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().strip(), 16):
                yield from self._exactly(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            yield from self._exactly(int(self.headers.get("content-length") or 0))

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size and (data := self.rfile.read(min(size, PIECE))):
            size -= len(data)
            yield data

    def say(self, status: int, headers: dict[str, str], *pieces: bytes, sized: bool = True) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if sized:
            self.send_header("Content-Length", str(sum(map(len, pieces))))
        self.end_headers()
        for piece in pieces if self.command != "HEAD" else ():
            self.wfile.write(piece)
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its name is given
        pass


class _Server(ThreadingHTTPServer):
    https: HttpsServer
    daemon_threads = False

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a connection that was cut, as some tests do


@dataclass
class HttpsServer:
    respond: Callable[[Exchange], None]
    context: ssl.SSLContext
    """For clients: trusts the server."""
    port: int = 0
    requests: list[Received] = field(default_factory=list)

    @property
    def host(self) -> str:
        """As agent.md writes it."""
        return f"git.test:{self.port}"

    def dialer(self) -> Dialer:
        async def resolve(_host: str, _port: int) -> tuple[str, ...]:
            return ("127.0.0.1",)

        return Dialer(resolve=resolve, ssl_context=self.context)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = ",".join(f"DNS:{name}" for name in NAMES)
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    made = ("-keyout", str(key), "-out", str(certificate))
    about = ("-subj", "/CN=git.test", "-addext", f"subjectAltName={names}")
    subprocess.run(
        ("openssl", "req", "-x509", *kind, *made, *about), check=True, capture_output=True
    )
    return key, certificate


@contextmanager
def https_server(folder: Path, respond: Callable[[Exchange], None]) -> Iterator[HttpsServer]:
    """A server on loopback, each connection in a thread of its own."""
    key, certificate = make_certificate(folder)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate, key)
    https = HttpsServer(respond, ssl.create_default_context(cafile=str(certificate)))
    server = _Server(("127.0.0.1", 0), Exchange)
    server.https = https
    server.socket = ours.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    https.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield https
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class GitServer:
    https: HttpsServer
    root: Path
    token: str

    @property
    def reached(self) -> list[str]:
        return [f"{each.method} {each.path}" for each in self.https.requests]

    def log(self, repository: str, ref: str = "main") -> list[str]:
        """The subjects of what is in a repository."""
        argv = ("git", "-C", str(self.root / repository), "log", "--format=%s", ref)
        done = subprocess.run(argv, check=True, capture_output=True, text=True, env=_git_env())
        return done.stdout.splitlines()


@asynccontextmanager
async def git_server(folder: Path, token: str, *repositories: str) -> AsyncIterator[GitServer]:
    """Repositories with one commit each, for whoever shows the token."""
    root = folder / "repositories"
    for name in repositories:
        await anyio.to_thread.run_sync(_make_repository, root / name)

    def respond(exchange: Exchange) -> None:
        shown = exchange.headers.get("authorization", "")
        pair = base64.b64encode(f"x-access-token:{token}".encode()).decode()
        if shown != f"Basic {pair}":
            exchange.say(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"who are you?\n")
        else:
            _backend(exchange, root)

    with https_server(folder / "certificate", respond) as https:
        yield GitServer(https, root, token)


def _make_repository(path: Path) -> None:
    path.mkdir(parents=True)
    run = {"check": True, "capture_output": True, "env": _git_env()}
    subprocess.run(("git", "init", "--bare", "-b", "main", str(path)), **run)  # type: ignore[call-overload]
    hello = (
        f"commit refs/heads/main\ncommitter T <t@git.test> 0 +0000\ndata 5\nfirst\n"
        f"M 644 inline README\ndata {len(path.name)}\n{path.name}\n\n"
    )
    git = ("git", "-C", str(path))
    subprocess.run((*git, "fast-import", "--quiet"), input=hello.encode(), **run)  # type: ignore[call-overload]
    subprocess.run((*git, "config", "http.receivepack", "true"), **run)  # type: ignore[call-overload]


def _git_env() -> dict[str, str]:
    nowhere = {"HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    return {"PATH": os.environ["PATH"], **nowhere}


def _backend(exchange: Exchange, root: Path) -> None:
    """git's own HTTP server, which speaks CGI."""
    path, _, query = exchange.path.partition("?")
    headers = exchange.headers
    env = _git_env() | {
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REQUEST_METHOD": exchange.command,
        "REMOTE_USER": "tester",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_TYPE": headers.get("content-type", ""),
        "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
        "HTTP_GIT_PROTOCOL": headers.get("git-protocol", ""),
        **({"CONTENT_LENGTH": size} if (size := headers.get("content-length")) else {}),
    }
    with subprocess.Popen(
        ("git", "http-backend"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as backend:
        assert backend.stdin is not None
        assert backend.stdout is not None
        with suppress(BrokenPipeError):
            for piece in exchange.body():
                backend.stdin.write(piece)
            backend.stdin.close()
        status, told = 200, {}
        while line := backend.stdout.readline().strip():
            key, _, value = line.decode().partition(": ")
            if key == "Status":
                status = int(value.split()[0])
            else:
                told[key] = value
        exchange.say(status, told, sized=False)
        while piece := backend.stdout.read(PIECE):
            exchange.wfile.write(piece)


def free_port() -> int:
    """One where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
