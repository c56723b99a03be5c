"""Hosts on a network of their own (chaos/netns.py): who reaches whom, what is lost, late, refused; nothing stays."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from minikafka.chaos.machine import Filter, run
from minikafka.chaos.netns import Lan, Namespace, Passage

pytestmark = pytest.mark.machine

PORT = 7000
PATIENCE_S = 60.0


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan(["n1", "n2", "n3"]) as made:
        yield made


class Posts:
    """A datagram socket on each host."""

    def __init__(self, lan: Lan) -> None:
        self._lan = lan
        self._sockets = {}
        for host in lan.hosts:
            with host.namespace.entered():
                found = self._sockets[host.name] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            found.bind((host.address, PORT))
            found.settimeout(PATIENCE_S)

    def send(self, source: str, target: str, word: str) -> None:
        self._sockets[source].sendto(word.encode(), (self._lan[target].address, PORT))

    def next(self, target: str) -> str:
        return self._sockets[target].recv(100).decode()

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()


@pytest.fixture
def posts(lan: Lan) -> Iterator[Posts]:
    made = Posts(lan)
    yield made
    made.close()


def test_hosts_reach_each_other_and_nothing_else(lan: Lan, posts: Posts):
    """FAULTS 4: a bridge, and a blackhole where the rest of the world would be."""
    posts.send("n1", "n3", "hello")
    assert posts.next("n3") == "hello"
    assert "blackhole default" in lan["n1"].run("ip", "route")
    with lan["n1"].namespace.entered():
        lost = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with lost, pytest.raises(OSError):
        lost.connect(("192.0.2.1", PORT))


def test_nothing_is_made_in_the_namespace_of_the_machine():
    """Rule 1: the namespace that all is made from has its links and rules as before, also while the network is there."""

    def seen() -> list[str]:
        return [run("ip", "-brief", "link"), run("iptables", "-S")]

    with contextlib.closing(Namespace()) as machine, machine.entered():
        before = seen()
        with Lan(["n1", "n2"]) as lan:
            lan.set_filters([(Passage("n1", "n2"), Filter(drops=True))])
            assert seen() == before
        assert seen() == before


def test_a_cut_is_one_way_and_heals(lan: Lan, posts: Posts):
    """Issue 7, Build 2: what n1 sends to n2 vanishes, n2 and n3 are heard; set anew, all of it passes again."""
    lan.set_filters([(Passage("n1", "n2"), Filter(drops=True))])
    posts.send("n1", "n2", "lost")
    posts.send("n2", "n1", "back")
    posts.send("n1", "n3", "beside")
    assert (posts.next("n1"), posts.next("n3")) == ("back", "beside")
    lan.set_filters([])
    posts.send("n1", "n2", "healed")
    assert posts.next("n2") == "healed"


def test_calls_are_refused_one_way(lan: Lan):
    """FAULTS 4, SYN only: n1 cannot begin a connection to n2, what n2 begins works in both directions."""
    lan.set_filters([(Passage("n1", "n2"), Filter(refuses_calls=True))])
    servers, callers = {}, {}
    for name in ("n1", "n2"):
        with lan[name].namespace.entered():
            servers[name] = socket.create_server((lan[name].address, PORT))
            callers[name] = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with servers["n1"], servers["n2"], callers["n1"], callers["n2"]:
        callers["n1"].settimeout(0)
        with pytest.raises(BlockingIOError):
            callers["n1"].connect((lan["n2"].address, PORT))
        callers["n2"].settimeout(PATIENCE_S)
        callers["n2"].connect((lan["n1"].address, PORT))
        with servers["n1"].accept()[0] as taken:
            callers["n2"].sendall(b"ping")
            assert taken.recv(4) == b"ping"
            taken.sendall(b"pong")
            assert callers["n2"].recv(4) == b"pong"
        with pytest.raises(OSError):  # it is still calling
            callers["n1"].getpeername()
        lan.set_filters([])
        servers["n2"].settimeout(PATIENCE_S)  # the kernel calls once more
        servers["n2"].accept()[0].close()


def test_a_share_of_packets_is_lost(lan: Lan, posts: Posts):
    """Half of four hundred: neither all nor none, unless the kernel draws a chance of one in 2**400."""
    lan.set_filters([(Passage("n1", "n2"), Filter(loses=0.5))])
    for number in range(400):
        posts.send("n1", "n2", str(number))
    lan.set_filters([])
    posts.send("n1", "n2", "end")
    found = list(iter(lambda: posts.next("n2"), "end"))
    assert 0 < len(found) < 400


def test_packets_are_late_and_in_order(lan: Lan, posts: Posts):
    """In place of netem, which this kernel may lack: who sent later and was not held back is heard first."""
    lan.set_filters([(Passage("n1", "n2"), Filter(delay_s=1.5, jitter_s=0.1))])
    for number in range(20):
        posts.send("n1", "n2", f"late {number}")
    posts.send("n3", "n2", "prompt")
    assert [posts.next("n2") for _ in range(21)] == ["prompt", *(f"late {number}" for number in range(20))]
    lan.set_filters([])
    posts.send("n1", "n2", "prompt again")
    assert posts.next("n2") == "prompt again"
