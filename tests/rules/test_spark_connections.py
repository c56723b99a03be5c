"""The connections that Spark's side keeps for its next call: whose they are, and when they end (SPARK 5)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from minikafka.blocking import brokers as client
from minikafka.errors import NetworkException
from minikafka.types import Address
from minikafka.wire import messages as m
from minikafka.wire.codec import encode_response

ROOT = Path(__file__).parents[2]


class _Answering(BaseHTTPRequestHandler):
    """Metadata to everybody who asks, on a connection that stays."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b"".join(bytes(each) for each in encode_response(m.MetadataResponse(cluster_id="c")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class _Refusing(_Answering):
    """Refuses everybody as a door does."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"title": "%b", "detail": "Host is not known; see mk.http.allowed.hosts"}' % (b"x" * 300)
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def broker(request):
    """Where something answers like a broker."""
    with ThreadingHTTPServer(("127.0.0.1", 0), getattr(request, "param", _Answering)) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield Address("127.0.0.1", server.server_address[1])
        client.close_all()
        server.shutdown()
        serving.join()


def run_alone(script: str, broker: Address) -> tuple[str, str]:
    """What a process of its own prints and complains of; ``ask()`` asks the broker."""
    prelude = (
        "import os, sys; from minikafka.blocking import brokers as client; from minikafka.types import Address; "
        "from minikafka.wire import messages as m\n"
        "def ask(): return client.call(Address('127.0.0.1', int(sys.argv[1])), m.MetadataRequest(topics=())).cluster_id"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", f"{prelude}\n{script}", str(broker.port)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout, done.stderr


def test_a_process_that_ends_leaves_no_socket_behind(broker):
    """Kept connections were never closed: six sockets were told of behind the last line of a test run."""
    assert run_alone("print(ask())", broker) == ("c\n", "")


def test_a_fork_does_not_hold_its_parents_connections(broker):
    """Spark forks its workers: one that held the driver's connections would keep them open after the driver's end."""
    script = """
ask()
(kept,) = client._connections.values()
descriptor = kept.sock.fileno()
child = os.fork()
if child == 0:
    try:
        os.fstat(descriptor)
    except OSError:
        os._exit(0 if not client._connections and ask() == "c" else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ask(), list(client._connections.values()) == [kept])
"""
    assert run_alone(script, broker) == ("0 c True\n", "")


@pytest.mark.parametrize("broker", [_Refusing], indirect=True)
def test_a_refusal_of_http_itself_is_told_with_what_to_do(broker):
    """A name that the broker does not know: its sentence names the setting, "403 Forbidden" did not."""
    with pytest.raises(NetworkException, match=r"HTTP 403: Host is not known; see mk.http.allowed.hosts") as caught:
        client.call(broker, m.MetadataRequest(topics=()))
    assert caught.value.outcome == "not_written"
    assert not client._connections


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError])
def test_a_call_that_ends_early_closes_its_connection(broker, monkeypatch, error):
    """Its answer may still come: nobody may take it for another call's; and nobody else would close it."""
    opened = []

    def interrupted(connection, *_):
        opened.append(connection)
        raise error

    monkeypatch.setattr(client, "_exchange", interrupted)
    with pytest.raises(NetworkException if error is OSError else error):
        client.call(broker, m.MetadataRequest(topics=()))
    assert [each.sock for each in opened] == [None]
    assert not client._connections
