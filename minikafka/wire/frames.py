"""A walk over the frames of records, for :mod:`minikafka.wire.validate`. Compiled it takes about 4 ns a record.

It accepts or abstains, and never reports a fault: what it abstains from, the codec's walk decides. It abstains from
every batch that no reader could read, and from a few that readers can: fields of 1 MiB and more, offset deltas of
2^20 and more, header keys that are not ASCII, and varints that are longer than they need to be.

Rules for this file:

1. mypyc compiles it (``tools/compile_rules.py``), and it is used only then (``IS_COMPILED``): interpreted, it takes
   several times as long as the codec's walk. Its source is ordinary Python, and tests run it interpreted, too.
2. The 64-bit integers of mypyc are named in annotations only: at run time there is no ``mypy_extensions``.
3. No position is ever negative: an index of -1 would be the last byte. A position behind the end raises IndexError.
4. Instructions are what a record costs. A byte is kept in an ``i64`` before it is compared, and ``& _POSITIONS`` tells
   the C compiler that a position is not negative: else each access checks that again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

UNSURE: Final = -1
IS_COMPILED = not __file__.endswith(".py")
_POSITIONS: Final = 0x7FFF_FFFF


def walk(data: bytes, position: i64, number: i64, end: i64) -> i64:
    """Walk over the records ``number`` to ``end - 1``, the first of which begins at ``position``.

    Returns the position behind the last record, or UNSURE. Each record that was walked over ends where its length says,
    has the offset delta of its number, and fields that fit into it.

    Unrolled: :func:`_number` for each field takes two and a half times as long, because a compiler does not inline it.
    ``low + ((next - 1) << 7)`` adds the second byte of a varint and removes the first byte's high bit. A varint is
    twice its value, or odd if that is negative; ``odd`` and ``attributes`` collect what is checked once, at the end.
    ``same`` and ``length`` are of the record before. Where records have one length, the processor need not read a
    record's length before it reads the next record: a fifth less time for records of 100 bytes.
    """
    size: i64 = len(data)
    odd: i64 = 0
    attributes: i64 = 0
    same: i64 = -1
    length: i64 = 0
    try:
        while number < end:
            # The length.
            at: i64 = position & _POSITIONS
            twice: i64 = data[at]
            at += 1
            if twice >= 0x80:
                byte: i64 = data[at]
                at += 1
                twice += (byte - 1) << 7
                if byte >= 0x80:
                    byte = data[at]
                    at += 1
                    twice += (byte - 1) << 14
                    if byte >= 0x80:
                        return UNSURE
            if twice != same:
                if twice & 1:
                    return UNSURE
                same = twice
                length = twice >> 1
            position = at + length
            # The attributes, then the timestamp delta, which may have any value.
            byte = data[at]
            attributes |= byte
            at += 1
            byte = data[at]
            if byte >= 0x80:
                last_at: i64 = at + 8
                at += 1
                byte = data[at]
                while byte >= 0x80:
                    at = (at + 1) & _POSITIONS
                    byte = data[at]
                if at > last_at:
                    return UNSURE
            at += 1
            # The offset delta.
            byte = data[at]
            if number < 64:
                if byte != number << 1:
                    return UNSURE
                at += 1
            else:
                if byte != (number << 1) & 0x7F | 0x80:
                    return UNSURE
                byte = data[at + 1]
                if number < 8192:
                    if byte != number >> 6:
                        return UNSURE
                    at += 2
                else:
                    if byte != (number >> 6) & 0x7F | 0x80:
                        return UNSURE
                    byte = data[at + 2]
                    if byte != number >> 13 or byte >= 0x80:
                        return UNSURE
                    at += 3
            # The key; 1 is the length of one that is absent.
            twice = data[at]
            at += 1
            if twice != 1:
                if twice >= 0x80:
                    byte = data[at]
                    at += 1
                    twice += (byte - 1) << 7
                    if byte >= 0x80:
                        byte = data[at]
                        at += 1
                        twice += (byte - 1) << 14
                        if byte >= 0x80:
                            return UNSURE
                odd |= twice
                at = (at + (twice >> 1)) & _POSITIONS
            # The value.
            twice = data[at]
            at += 1
            if twice >= 0x80:
                byte = data[at]
                at += 1
                twice += (byte - 1) << 7
                if byte >= 0x80:
                    byte = data[at]
                    at += 1
                    twice += (byte - 1) << 14
                    if byte >= 0x80:
                        return UNSURE
            number += 1
            # Mostly the record ends with the value and no headers.
            if twice != (position - at - 1) << 1 or data[position - 1] != 0:
                if twice != 1:
                    odd |= twice
                    at += twice >> 1
                if _headers_end(data, at) != position:
                    return UNSURE
    except IndexError:
        return UNSURE
    if odd & 1 or attributes >= 0x80 or position > size:
        return UNSURE
    return position


def _headers_end(data: bytes, at: i64) -> i64:
    """Return the position behind the headers, whose count is at ``at``, or UNSURE."""
    count, at = _number(data, at)
    # A count that cannot be met ends with an IndexError.
    if count < 0:
        return UNSURE
    while count > 0:
        count -= 1
        size, at = _number(data, at)
        if size < 0:
            return UNSURE
        key_end: i64 = at + size
        while at < key_end:
            if data[at] >= 0x80:
                return UNSURE
            at += 1
        size, at = _number(data, at)
        if size < -1:
            return UNSURE
        if size > 0:
            at += size
    return at


def _number(data: bytes, at: i64) -> tuple[i64, i64]:
    """(value, position behind it) of the varint at ``at``; a value of -2 for one that is too long to be judged here."""
    value: i64 = 0
    shift: i64 = 0
    while shift < 21:
        byte: i64 = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return -2, at
