"""The quorum's files: quorum-state as Kafka writes it, snapshots that are whole or refused, control records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.errors import CorruptMessage, InvalidRecord, KafkaStorageError
from minikafka.quorum.files import (
    SNAPSHOT_BATCH_BYTES,
    QuorumState,
    decode_snapshot,
    decode_state,
    encode_snapshot,
    encode_state,
    parse_snapshot_name,
    part_path,
    snapshot_path,
)
from minikafka.quorum.records import leader_change_batch
from minikafka.types import EpochEnd
from minikafka.wire.batch import split_verified
from minikafka.wire.records import CONTROL_LEADER_CHANGE, control_type_of, decode_batch

IDS = st.integers(-1, 2**31 - 1)


def test_quorum_state_is_kafkas_text():
    """KAFKA-FACTS 1.2: one JSON line, version 1."""
    told = encode_state(QuorumState(epoch=2, voted_id=1))
    assert told == (
        b'{"leaderId":-1,"leaderEpoch":2,"votedId":1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}\n'
    )


@given(st.builds(QuorumState, epoch=st.integers(0, 2**31 - 1), leader_id=IDS, voted_id=IDS))
def test_quorum_state_comes_back(state: QuorumState):
    """Votes survive a restart."""
    assert decode_state(encode_state(state)) == state


def test_version_0_is_read():
    """An older directory of Kafka's has more members."""
    text = '{"clusterId":"c","leaderId":3,"leaderEpoch":7,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":3}],"data_version":0}'
    assert decode_state(text.encode()) == QuorumState(epoch=7, leader_id=3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"data_version":2}',
        b'{"data_version":1}',
        b'{"leaderEpoch":"1","data_version":1}',
        b'{"leaderEpoch":-1,"data_version":1}',
    ],
)
def test_a_damaged_quorum_state_is_an_error_and_never_empty(data: bytes):
    """A member without memory would vote twice in one epoch."""
    with pytest.raises(KafkaStorageError, match="quorum-state"):
        decode_state(data)


def test_snapshot_names_are_kafkas():
    """KAFKA-FACTS 1.1: 20 digits of end offset, 10 of epoch."""
    snapshot = EpochEnd(7, 1234)
    assert snapshot_path(snapshot) == "__cluster_metadata-0/00000000000000001234-0000000007.checkpoint"
    assert part_path(snapshot) == snapshot_path(snapshot) + ".part"
    assert parse_snapshot_name("00000000000000001234-0000000007.checkpoint") == snapshot


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000001234-0000000007.checkpoint.part",
        "1234-7.checkpoint",
        "leader-epoch-checkpoint",
        "00000000000000000000.log",
        "0000000000000000123x-0000000007.checkpoint",
    ],
)
def test_other_files_are_no_snapshots(name: str):
    """They lie in the folder of the log."""
    assert parse_snapshot_name(name) is None


def test_a_snapshot_is_framed_numbered_and_comes_back():
    """KAFKA-FACTS 4.3: header, state, footer; offsets from 0 without gaps, in the snapshot's epoch."""
    payloads = [bytes([n % 256]) * (SNAPSHOT_BATCH_BYTES // 10) for n in range(25)]
    data = b"".join(encode_snapshot(EpochEnd(4, 99), payloads, timestamp_ms=1))
    batches = split_verified(data)
    assert len(batches) == 2 + 3
    assert [batch.base_offset for batch in batches] == [0, 1, *[batch.next_offset for batch in batches[1:-1]]]
    assert {batch.leader_epoch for batch in batches} == {4}
    assert decode_snapshot(data) == payloads
    assert decode_snapshot(b"".join(encode_snapshot(EpochEnd(4, 99), [], timestamp_ms=1))) == []


WHOLE = b"".join(encode_snapshot(EpochEnd(4, 99), [b"one", b"two"], timestamp_ms=1))


@given(st.integers(0, len(WHOLE) - 1))
def test_a_cut_snapshot_is_refused(size: int):
    """Half a state is worse than none."""
    with pytest.raises(CorruptMessage):
        decode_snapshot(WHOLE[:size])


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 7))
def test_a_flipped_bit_in_a_snapshot_is_refused(at: int, bit: int):
    """Everything but offsets and epochs, which are not used, is under a checksum."""
    data = bytearray(WHOLE)
    data[at] ^= 1 << bit
    try:
        payloads = decode_snapshot(bytes(data))
    except (CorruptMessage, InvalidRecord):
        return
    assert payloads == [b"one", b"two"]


def test_leader_change_is_kafkas_record():
    """LeaderChangeMessage version 0: version, leader, voters, who granted; one control record."""
    batch = split_verified(leader_change_batch(2, voters=(1, 2, 3), granting=(2, 3), timestamp_ms=5))[0]
    record = decode_batch(batch)[0]
    assert batch.is_control
    assert control_type_of(record) == CONTROL_LEADER_CHANGE
    assert record.value is not None
    assert record.value.hex() == "00000000000204000000010000000002000000000300030000000200000000030000"
