"""The memory tail against a plain list of batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minikafka.log import tail as tail_module
from minikafka.log.tail import LogSlice, MemoryTail

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(1, 20)),
        st.tuples(st.just("gap"), st.integers(1, 3), st.integers(1, 20)),
        st.tuples(st.just("truncate"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 40), st.just(0)),
    ),
    max_size=40,
)


class Plain:
    """Whole batches as (base offset, next offset, data), looked at one after the other."""

    def __init__(self, size_max: int) -> None:
        self.held: list[tuple[int, int, bytes]] = []
        self._size_max = size_max

    @property
    def size(self) -> int:
        return sum(len(data) for _, _, data in self.held)

    def append(self, base: int, end: int, data: bytes) -> None:
        if self.held and self.held[-1][1] != base:
            self.held = []
        self.held.append((base, end, data))
        while self.size > self._size_max:
            del self.held[0]

    def read(self, offset: int, end_offset: int, max_bytes: int, *, min_one_batch: bool) -> LogSlice | None:
        if not any(base <= offset < end for base, end, _ in self.held):
            return None
        found = [each for each in self.held if each[1] > offset]
        taken: list[tuple[int, int, bytes]] = []
        for each in found:
            fits = sum(len(data) for _, _, data in taken) + len(each[2]) <= max_bytes
            if each[1] > end_offset or not (fits or (min_one_batch and not taken)):
                break
            taken.append(each)
        if not taken:
            return LogSlice((), 0, offset, offset)
        buffers = [data for _, _, data in taken]
        return LogSlice(buffers, sum(map(len, buffers)), taken[0][0], taken[-1][1])


@given(STEPS, st.integers(0, 60), st.integers(0, 50), st.integers(0, 60), st.booleans(), st.integers(0, 5))
def test_the_tail_holds_and_gives_out_what_a_plain_list_does(
    steps: list[tuple[str, int, int]], size_max: int, ahead: int, max_bytes: int, one: bool, forgotten_max: int
) -> None:
    """Whatever is appended, cut, and forgotten, and however many places of forgotten batches are kept."""
    before, tail_module._FORGOTTEN_MAX = tail_module._FORGOTTEN_MAX, forgotten_max
    try:
        tail, plain = MemoryTail(size_max), Plain(size_max)
        end = 0
        for number, (what, value, size) in enumerate(steps):
            if what in ("append", "gap"):
                base = end + (what == "gap")
                end = base + value
                data = bytes([number]) * size
                tail.append(base_offset=base, next_offset=end, buffers=(data,), size=size)
                plain.append(base, end, data)
            elif what == "truncate":
                tail.truncate(value)
                plain.held = [each for each in plain.held if each[1] <= value]
                end = plain.held[-1][1] if plain.held else end
            else:
                tail.drop_before(value)
                plain.held = [each for each in plain.held if each[1] > value]
            assert tail.size == plain.size
            for offset in range(end + 2):
                wanted = plain.read(offset, offset + ahead, max_bytes, min_one_batch=one)
                read = tail.read(offset, end_offset=offset + ahead, max_bytes=max_bytes, min_one_batch=one)
                assert read == wanted
    finally:
        tail_module._FORGOTTEN_MAX = before


def test_a_read_at_the_start_of_a_full_tail_looks_at_few_batches() -> None:
    """A follower that lags, or a consumer of old records, must not cost a walk over thousands of small batches."""
    tail = MemoryTail(1 << 20)
    for number in range(10_000):
        tail.append(base_offset=number, next_offset=number + 1, buffers=(b"x" * 100,), size=100)
    looked: list[int] = []
    plain = tail_module._base_offset_of
    try:
        tail_module._base_offset_of = lambda held: looked.append(held[0]) or plain(held)  # type: ignore[assignment]
        read = tail.read(17, end_offset=10_000, max_bytes=250, min_one_batch=True)
    finally:
        tail_module._base_offset_of = plain
    assert read is not None
    assert (read.first_offset, read.next_offset, read.size) == (17, 19, 200)
    assert len(looked) <= 14


def test_many_small_batches_are_left_to_the_file(monkeypatch):
    """One read of the file has them all; up to the limit they come from memory."""
    monkeypatch.setattr(tail_module, "GIVEN_MAX", 5)
    tail = MemoryTail(10_000)
    for base in range(20):
        tail.append(base_offset=base, next_offset=base + 1, buffers=(b"x" * 10,), size=10)
    for offset in (0, 3, 14):
        assert tail.read(offset, end_offset=20, max_bytes=1_000, min_one_batch=True) is None
        few = tail.read(offset, end_offset=20, max_bytes=49, min_one_batch=True)
        assert few is not None
        assert few.next_offset == offset + 4
    last = tail.read(15, end_offset=20, max_bytes=1_000, min_one_batch=True)
    assert last is not None
    assert last.next_offset == 20
