"""The sink's transactions, against brokers that answer by script (issue 17, Build 3)."""

from __future__ import annotations

import logging

import pytest

from minikafka.blocking import brokers as client
from minikafka.blocking.brokers import Brokers, BrokersUnreachable
from minikafka.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    InvalidProducerEpoch,
    InvalidTxnState,
    NetworkException,
    NotCoordinator,
    TransactionalIdNotFound,
    UnstableOffsetCommit,
)
from minikafka.spark import transactions
from minikafka.spark.transactions import (
    BatchNotCommitted,
    JobFailed,
    LaterBatchWritten,
    OpenTransaction,
    TaskTransaction,
    abort_all,
    abort_run,
    abort_unreported,
    check_job_goes_on,
    commit_all,
    is_written,
    note_run,
    transactional_id,
)
from minikafka.types import Address
from minikafka.wire import messages as m
from minikafka.wire.group_messages import (
    Coordinator,
    FetchedOffset,
    FindCoordinatorResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    PartitionOutcome,
)
from minikafka.wire.transaction_messages import (
    DescribedTransaction,
    DescribeTransactionsResponse,
    EndTxnResponse,
    TxnOffsetCommitResponse,
)

NAME = transactional_id("q", 3)
OPEN = OpenTransaction(NAME, 4000, 5)


@pytest.fixture
def script(monkeypatch):
    """API -> responses in order, the last of them for good; every request is kept."""
    found = Coordinator(key=NAME, node_id=1, host="127.0.0.1", port=9001)
    answers = {"FindCoordinator": [FindCoordinatorResponse(coordinators=(found,))], "requests": []}

    def call(_, request, **__):
        answers["requests"].append(request)
        waiting = answers[type(request).__name__.removesuffix("Request")]
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(client, "call", call)
    monkeypatch.setattr(client.time, "sleep", lambda _: None)
    monkeypatch.setattr(transactions, "ABORT_TIMEOUT_S", 0.8)
    return answers


def brokers():
    return Brokers([Address("127.0.0.1", 9001)], api_timeout_s=0.5)


def sent(script, api):
    return [each for each in script["requests"] if type(each).__name__ == f"{api}Request"]


@pytest.mark.parametrize(("note", "written"), [(-1, False), (4, False), (5, False), (6, True)])
def test_a_note_says_that_the_batch_is_written(note, written):
    """Rule 2: the note is the next batch; an older one, of a batch without rows for this task, says nothing."""
    assert is_written(note, 5) is written


def test_a_checkpoint_that_is_older_than_the_topic_is_refused():
    """Batch 5 again after batch 6 was written: whatever it writes may be there twice."""
    with pytest.raises(LaterBatchWritten, match=r"batch 5 is run again, but batch 6"):
        is_written(7, 5)


def test_the_note_is_read_after_the_former_attempt_has_ended(script):
    """Rule 2: InitProducerId returns when the former transaction is over, and unstable offsets are waited for."""
    script["InitProducerId"] = [
        ConcurrentTransactions("its open transaction is being aborted"),
        NotCoordinator("moved"),
        m.InitProducerIdResponse(producer_id=4000, producer_epoch=5),
    ]
    unstable = FetchedOffset(topic="t", partition=0, error_code=UnstableOffsetCommit.code, error_message="pending")
    script["OffsetFetch"] = [
        OffsetFetchResponse(partitions=(unstable,)),
        OffsetFetchResponse(
            partitions=(
                FetchedOffset(topic="t", partition=0, offset=3),
                FetchedOffset(topic="u", partition=0, offset=8),
            )
        ),
    ]
    transaction = TaskTransaction(brokers(), NAME, timeout_ms=1000)
    assert transaction.opened == OPEN
    assert transaction.note() == 8
    assert all(each.require_stable and each.group_id == NAME for each in sent(script, "OffsetFetch"))
    apis = [type(each).__name__ for each in script["requests"]]
    assert apis.index("OffsetFetchRequest") > max(i for i, each in enumerate(apis) if each == "InitProducerIdRequest")


def test_the_note_joins_the_transaction(script):
    """Transaction version 2 with the producer's epoch: fenced with it, and committed with the rows or not at all."""
    script["InitProducerId"] = [m.InitProducerIdResponse(producer_id=4000, producer_epoch=5)]
    script["TxnOffsetCommit"] = [TxnOffsetCommitResponse(partitions=(PartitionOutcome(topic="t", partition=0),))]
    transaction = TaskTransaction(brokers(), NAME, timeout_ms=1000)
    transaction.write_note(7, "t")
    (request,) = sent(script, "TxnOffsetCommit")
    assert (request.producer_id, request.producer_epoch, request.transaction_version) == (4000, 5, 2)
    assert [(each.topic, each.partition, each.offset) for each in request.partitions] == [("t", 0, 8)]
    fenced = PartitionOutcome(topic="t", partition=0, error_code=InvalidProducerEpoch.code, error_message="fenced")
    script["TxnOffsetCommit"] = [TxnOffsetCommitResponse(partitions=(fenced,))]
    with pytest.raises(InvalidProducerEpoch, match="fenced"):
        transaction.write_note(7, "t")


def test_a_commit_without_response_is_requested_again(script):
    """Rule 4: the same request, which a coordinator answers as it did the first time."""
    script["EndTxn"] = [NetworkException("no answer"), EndTxnResponse(producer_id=4000, producer_epoch=6)]
    commit_all(brokers(), [OPEN])
    first, again = sent(script, "EndTxn")
    assert first == again
    assert (first.committed, first.producer_epoch, first.transaction_version) == (True, 5, 2)


def test_a_transaction_that_timed_out_fails_the_batch(script):
    """The batch is not done, so Spark runs it again; the error names the setting."""
    script["EndTxn"] = [InvalidProducerEpoch("epoch 5 is fenced")]
    with pytest.raises(BatchNotCommitted, match=rf"{NAME}.*INVALID_PRODUCER_EPOCH.*kafka.transaction.timeout.ms"):
        commit_all(brokers(), [OPEN])
    script["EndTxn"] = [NetworkException("down")]
    with pytest.raises(BrokersUnreachable, match=f"ending the transaction of {NAME}"):
        commit_all(brokers(), [OPEN])


OTHER = OpenTransaction(transactional_id("q", 4), 4001, 2)


def described(opened, **changes):
    """DescribeTransactions' response for a transaction that is open as its task left it, but for ``changes``."""
    found = {"state": "Ongoing", "producer_id": opened.producer_id, "producer_epoch": opened.epoch} | changes
    one = DescribedTransaction(transactional_id=opened.transactional_id, **found)
    return DescribeTransactionsResponse(transactions=(one,))


@pytest.mark.parametrize(
    "ended",
    [
        {"state": "CompleteAbort", "producer_epoch": 3},
        {"state": "PrepareAbort"},
        {"producer_epoch": 4},
        {"producer_id": 4002},
        {"error_code": TransactionalIdNotFound.code, "error_message": "none"},
    ],
)
def test_no_transaction_is_committed_when_another_one_of_the_batch_has_ended(script, ended):
    """Batch writes: transactional=true; after a timeout in one task, the rows of the others stayed visible for good."""
    script["DescribeTransactions"] = [described(OPEN), described(OTHER, **ended)]
    script["EndTxn"] = [EndTxnResponse()]
    with pytest.raises(BatchNotCommitted, match=rf"{OTHER.transactional_id} was ended by its timeout"):
        commit_all(brokers(), [OPEN, OTHER])
    assert sent(script, "EndTxn") == []


def test_all_transactions_are_committed_when_all_are_open(script):
    """Each coordinator is asked first."""
    script["DescribeTransactions"] = [described(OPEN), described(OTHER)]
    script["EndTxn"] = [EndTxnResponse()]
    commit_all(brokers(), [OPEN, OTHER])
    assert [each.transactional_ids for each in sent(script, "DescribeTransactions")] == [
        (OPEN.transactional_id,),
        (OTHER.transactional_id,),
    ]
    ended = [(each.transactional_id, each.producer_epoch, each.committed) for each in sent(script, "EndTxn")]
    assert ended == [(OPEN.transactional_id, 5, True), (OTHER.transactional_id, 2, True)]


def test_an_abort_never_hides_why_the_batch_failed(script, caplog):
    """Spark aborts after a failed commit: what is committed is refused by its coordinator, and the rest is a warning."""
    caplog.set_level(logging.INFO, "minikafka.spark")
    script["EndTxn"] = [InvalidTxnState("is CompleteCommit"), NotCoordinator("moved"), EndTxnResponse()]
    abort_all(brokers(), [OPEN, OPEN])
    assert [each.committed for each in sent(script, "EndTxn")] == [False] * 3
    assert [(each.levelname, "is not open" in each.message) for each in caplog.records] == [("INFO", True)]


def test_tasks_that_never_reported_are_fenced(script, caplog):
    """Spark kills tasks that write when another one fails: initializing their producers aborts what they left open."""
    initialized = m.InitProducerIdResponse(producer_id=4000, producer_epoch=6)
    script["InitProducerId"] = [ConcurrentTransactions("its open transaction is being aborted"), initialized]
    abort_unreported(brokers(), "q", [NAME, transactional_id("q", 4)], timeout_ms=7)
    mark = "spark-sink-q-failed"
    names = [mark, mark, NAME, transactional_id("q", 4)]
    assert [each.transactional_id for each in sent(script, "InitProducerId")] == names
    assert {each.transaction_timeout_ms for each in sent(script, "InitProducerId")} == {7}
    script["InitProducerId"] = [NetworkException("no response")]
    abort_unreported(brokers(), "q", [NAME], timeout_ms=7)
    assert f"what {NAME} may have open stays so until its timeout" in caplog.text


def test_a_task_asks_whether_its_job_has_failed(script):
    """Rule 5: without the mark it goes on; what the coordinator cannot say yet is asked again."""
    unknown = DescribedTransaction(transactional_id="", error_code=TransactionalIdNotFound.code, error_message="none")
    loading = DescribedTransaction(transactional_id="", error_code=CoordinatorLoadInProgress.code, error_message="wait")
    script["DescribeTransactions"] = [DescribeTransactionsResponse(transactions=(each,)) for each in (loading, unknown)]
    check_job_goes_on(brokers(), "q")
    assert [each.transactional_ids for each in sent(script, "DescribeTransactions")] == [("spark-sink-q-failed",)] * 2
    marked = DescribedTransaction(transactional_id="spark-sink-q-failed", state="Empty")
    script["DescribeTransactions"] = [DescribeTransactionsResponse(transactions=(marked,))]
    with pytest.raises(JobFailed, match="job q has failed"):
        check_job_goes_on(brokers(), "q")


@pytest.mark.parametrize("api", ["InitProducerId", "EndTxn"])
def test_aborts_that_nobody_answers_have_an_end(script, caplog, monkeypatch, api):
    """A job of a hundred tasks that fails because brokers are down must not try each of them for a minute."""
    script[api] = [NetworkException("no response")]
    timeouts_s = []
    ask = client.Coordinator.ask

    def noted(coordinator, *arguments, **options):
        timeouts_s.append(options.get("timeout_s"))
        return ask(coordinator, *arguments, **options)

    monkeypatch.setattr(client.Coordinator, "ask", noted)
    if api == "EndTxn":
        abort_all(brokers(), [OpenTransaction(transactional_id("q", task), 4000, 5) for task in range(100)])
        assert {each.transactional_id for each in sent(script, api)} == {transactional_id("q", 0)}
    else:
        abort_unreported(brokers(), "q", [transactional_id("q", task) for task in range(99)], timeout_ms=7)
        assert {each.transactional_id for each in sent(script, api)} == {"spark-sink-q-failed"}
    assert caplog.text.count("stays so until its timeout") == 100
    assert timeouts_s == [transactions.ABORT_TIMEOUT_S]


def test_the_driver_of_a_stopped_query_learns_what_its_tasks_may_have_open(script, caplog):
    """Rule 6: Spark says neither the query nor the run to it; the tasks have noted both, and the run gets the mark."""
    script["OffsetCommit"] = [OffsetCommitResponse(partitions=(PartitionOutcome(topic="t", partition=0),))]
    note_run(brokers(), "w", "run", "q", "t")
    (request,) = sent(script, "OffsetCommit")
    noted = FetchedOffset(topic="t", partition=0, offset=0, metadata=request.partitions[0].metadata)
    script["OffsetFetch"] = [OffsetFetchResponse(partitions=(noted,))]
    script["InitProducerId"] = [m.InitProducerIdResponse(producer_id=4000, producer_epoch=6)]
    abort_run(brokers(), "w", [0, 3], timeout_ms=7)
    assert {request.group_id, *(each.group_id for each in sent(script, "OffsetFetch"))} == {"spark-sink-w"}
    names = [each.transactional_id for each in sent(script, "InitProducerId")]
    assert names == ["spark-sink-run-failed", transactional_id("q", 0), NAME]
    script["OffsetFetch"] = [InvalidTxnState("odd")]
    abort_run(brokers(), "w", [0], timeout_ms=7)
    assert "what a stopped query may have open stays so" in caplog.text
    assert len(sent(script, "InitProducerId")) == 3
