// The lanes of a partition, a form that sends a record, and where that record is.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { at, messageOf, request } from "../api";
import { failed, pausedAt } from "../live";
import { Lanes, VALUES, replicasOf, valuesOf } from "../lane";
import { Cells, PartitionHead, Table } from "../parts";
import type { Partition, PartitionView } from "../types";
import { capital, moment } from "../words";

interface Sent {
  offset: number;
  ms: number;
}

function journeyOf({ offset, ms }: Sent, partition: Partition): string[] {
  const replicas = replicasOf(partition).map(({ id, own_leo: leo }) => leo === null ? `broker ${id}: no word`
    : leo > offset ? `broker ${id}: in its log` : `broker ${id}: not there, its log ends at ${leo}`);
  const end = partition.high_watermark;
  return [`acknowledged at offset ${offset} after ${ms} ms`, ...replicas, ...end === null ? [] : [end > offset ? "committed" : "not committed yet"]];
}

function Produce({ topic, number, partition }: { topic: string; number: number; partition: Partition }): JSX.Element {
  const [sent, setSent] = useState<Sent | null>(null);
  const [refused, setRefused] = useState("");
  const form = useRef<HTMLFormElement>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    const data = new FormData(form.current ?? undefined);
    const begun = performance.now();
    try {
      const key = String(data.get("key"));
      const record = { value: String(data.get("value")), ...key && { key } };
      const answer = await request<{ records: [{ offset: number }] }>(`${at(topic, number)}/records`, { records: [record] });
      setSent({ offset: answer.records[0].offset, ms: Math.round(performance.now() - begun) });
      setRefused("");
    } catch (error) {
      setSent(null);
      setRefused(messageOf(error));
    }
  };
  return <section>
    <h2>Produce</h2>
    <form ref={form} onSubmit={(event) => void submit(event)}>
      <label>Key<input name="key" autocomplete="off" /></label>
      <label>Value (text)<input name="value" autocomplete="off" required /></label>
      <button class="main" disabled={pausedAt.value !== null}>Produce</button>
    </form>
    {pausedAt.value !== null && <p class="soft">The page shows an earlier time: select Live to produce.</p>}
    <div role="status">
      {refused && <p class="failed">{refused}</p>}
      {sent && <ol class="journey">{journeyOf(sent, partition).map((step) => <li>{step}</li>)}</ol>}
    </div>
  </section>;
}

const PRODUCER_COLUMNS = ["Producer id#", "Epoch#", "Last sequence#", "Last batch (local)", "Open transaction"];

function Producers({ state }: { state: PartitionView }): JSX.Element {
  const producers = Object.values(state.producers);
  const more = state.producer_count - producers.length;
  return <section>
    <h2>Producers and transactions</h2>
    {state.why_stable_offset && <p>{state.why_stable_offset}</p>}
    {producers.length ? <Table cards label="Producers" columns={PRODUCER_COLUMNS}>
      {producers.map((each) => <tr key={each.producer_id}><Cells columns={PRODUCER_COLUMNS} of={[each.producer_id, each.producer_epoch, each.last_sequence, moment(each.last_timestamp),
        each.transaction_start_offset === null ? "none" : `since offset ${each.transaction_start_offset}: it holds the LSO`]} /></tr>)}
    </Table> : <p>{state.partition.high_watermark === null ? "No leader reports its producers." : "The leader knows no idempotent or transactional producer."}</p>}
    {more > 0 && <p class="soft">{more} more producers are not shown.</p>}
  </section>;
}

/** The latest election that happened while the view was open, with its reason in the brokers' words: screen readers announce it. */
function Election({ topic, number, epoch }: { topic: string; number: number; epoch: number | null }): JSX.Element {
  const [said, setSaid] = useState("");
  const latest = useRef<number | null>(null);
  useEffect(() => {
    const before = latest.current;
    if (epoch === null || before !== null && epoch <= before) return;
    latest.current = epoch;
    if (before === null) return;
    void request<{ leader: { sentence: string } }>(`${at(topic, number)}/explain`).then(({ leader }) => setSaid(`${capital(leader.sentence)}.`),
      (error: unknown) => setSaid(`The leader epoch is ${epoch}. Its reason cannot be read: ${messageOf(error)}`));
  }, [epoch]);
  return <div class="election" role="status">{epoch !== null && said !== "" && <p class="present">{said}</p>}</div>;
}

/** What the page shows of a partition's state, and nothing that is kept between states. */
export function PartitionState({ state }: { state: PartitionView }): JSX.Element {
  return <>
    <Lanes partition={state.partition} why={state.why_watermark} />
    <section>
      <h2>Values</h2>
      <Table cards label="Offsets of each replica" columns={VALUES}>
        {replicasOf(state.partition).map((each) => <tr key={each.id} data-values={each.id}><Cells columns={VALUES} of={valuesOf(each)} /></tr>)}
      </Table>
    </section>
  </>;
}

export function PartitionLanes({ topic, number, state, problem }: { topic: string; number: number; state: PartitionView | null; problem: string }): JSX.Element {
  return <>
    <PartitionHead topic={topic} number={number} present="" />
    {problem && <section><p>{pausedAt.value === null ? "" : "At this time: "}{problem}.</p></section>}
    <Election topic={topic} number={number} epoch={pausedAt.value === null ? state?.partition.leader_epoch ?? null : null} />
    {state && <PartitionState state={state} />}
    {state && !failed.value && <Produce topic={topic} number={number} partition={state.partition} />}
    {state?.producers && <Producers state={state} />}
  </>;
}
