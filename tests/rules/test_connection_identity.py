"""How a broker reads a client's id and library from ``User-Agent``, and writes the address of a peer."""

from __future__ import annotations

import pytest

from minikafka import __version__
from minikafka.world.connections import NAME_LENGTH_MAX, agent_in, identity_of, peer_of, user_agent


@pytest.mark.parametrize(
    ("agent", "identity"),
    [
        (user_agent("broker-3"), ("broker-3", f"minikafka {__version__}")),
        (user_agent(), ("", f"minikafka {__version__}")),
        ("curl/8.14.1", ("", "curl 8.14.1")),
        ("Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101", ("", "Mozilla 5.0")),
        ("probe", ("", "probe")),
        ("cu\udcffrl/8", ("", "cu?rl 8")),
        ("", ("", "")),
        ("(only a comment)", ("", "")),
        ("x" * 10_000, ("", "x" * NAME_LENGTH_MAX)),
    ],
)
def test_identity_is_the_first_product_and_only_minikafka_names_a_client_id(agent: str, identity: tuple[str, str]):
    """The comment of another program's User-Agent is no client id."""
    assert identity_of(agent) == identity


def test_user_agent_is_found_among_header_lines_in_any_case():
    """Not inside the value of another header; at most NAME_LENGTH_MAX bytes of it."""
    assert agent_in(b"Host: a\r\nuser-agent:  curl/8 \r\nAccept: */*") == "curl/8 "
    assert agent_in(b"User-Agent: first\r\n") == "first"
    assert agent_in(b"Host: a\r\nX-Note: User-Agent: no\r\n") == ""
    assert agent_in(b"\r\nUser-Agent: " + b"y" * 1000) == "y" * NAME_LENGTH_MAX


def test_peer_is_written_as_an_address_with_its_port():
    """IPv6 addresses stand in brackets; a socket whose peer has left has no address."""
    assert peer_of(("127.0.0.1", 50412)) == "127.0.0.1:50412"
    assert peer_of(("::1", 50412, 0, 0)) == "[::1]:50412"
    assert peer_of(None) == ""
