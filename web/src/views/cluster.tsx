// Brokers, the leader and ISR of each partition, and a first topic where there is none.
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { at, messageOf, request } from "../api";
import { pausedAt } from "../live";
import { Cells, Table } from "../parts";
import { byId, explain, health } from "../shell";
import type { Cell, ClusterView } from "../types";
import { counted, internalLast, link } from "../words";

const BROKER_COLUMNS = ["Broker", "State", "Leads#", "In sync#", "Replicas#"];
const WORDS_MAX = 24; // partitions of a topic that are shown in words; more are numbers with a sign
const SIGNS = { "ok": "▮", "under-replicated": "▯", "under-min-isr": "▯!", "offline": "╳" };
const URGENT = ["offline", "under-min-isr"];
const FIRST = { name: "orders", partitions: 3, copiesMax: 3 };

function Brokers({ state }: { state: ClusterView }): JSX.Element {
  return <Table label="Brokers" columns={BROKER_COLUMNS}>
    {Object.values(state.brokers).map((each) => <tr key={each.id}><Cells columns={BROKER_COLUMNS} of={[
      <><a href={`${each.url}/`}>broker {each.id}</a>{each.id === state.controller && " ♛ controller"}</>,
      <button class={each.fenced || state.caution ? "chip out" : "chip"} onClick={() => explain(each.why)}>{each.fenced ? "✗ fenced" : state.caution ? "? was up" : "✓ up"}</button>,
      each.leader_count, each.in_sync_count, each.replica_count]} /></tr>)}
  </Table>;
}

function words({ leader, isr, replicas, state }: Cell): string {
  const below = state === "under-min-isr" ? ", below min ISR" : "";
  return leader === null ? "no leader" : `leader ${leader}, ISR {${isr.join(",")}} of {${replicas.join(",")}}${below}`;
}

function Topic({ topic, partitions }: { topic: string; partitions: Record<string, Cell> }): JSX.Element {
  const listed = Object.entries(partitions);
  const small = listed.length > WORDS_MAX;
  return <div class="topic">
    <h3><a href={`#/t/${encodeURIComponent(topic)}`}>{topic}</a></h3>
    <div class={small ? "matrix small" : "matrix"}>
      {listed.map(([number, one]) => small
        ? <a key={number} href={link(topic, number)} class={one.state} title={words(one)} aria-label={`${number}: ${words(one)}`}>{number} {SIGNS[one.state]}</a>
        : <a key={number} href={link(topic, number)} class={one.state}>{number}: {words(one)}</a>)}
    </div>
    {small && <p class="soft">▮ all copies in sync, ▯ some are not, ▯! fewer than min.insync.replicas, ╳ no leader.</p>}
  </div>;
}

// ---- the first topic ----

const starting = signal(false);
let sending = 0;

async function start(copies: number): Promise<void> {
  starting.value = true;
  try {
    await request("/v1/topics", { name: FIRST.name, partitions: FIRST.partitions, replication_factor: copies });
    sendEverySecond();
    location.hash = link(FIRST.name, 0);
  } catch (error) {
    explain(messageOf(error));
  }
  starting.value = false;
}

function sendEverySecond(): void {
  let count = 0;
  const stop = byId("sending");
  stop.hidden = false;
  stop.onclick = () => { clearInterval(sending); stop.hidden = true; };
  const send = async () => {
    try {
      await request(`${at(FIRST.name, 0)}/records`, { records: [{ key: `order-${count}`, value: { number: count++ } }] });
    } catch (error) {
      health.value = `A record was not acknowledged: ${messageOf(error)}`;
    }
  };
  void send();
  sending = setInterval(() => void send(), 1000);
}

addEventListener("pagehide", () => clearInterval(sending));

function FirstTopic({ state }: { state: ClusterView }): JSX.Element {
  const copies = Math.min(FIRST.copiesMax, Object.values(state.brokers).filter((each) => !each.fenced).length);
  return <>
    <p>There are no topics yet.</p>
    <button class="main" disabled={starting.value || pausedAt.value !== null} onClick={() => void start(copies)}>
      Create {FIRST.name} ({FIRST.partitions} partitions, {copies} {copies === 1 ? "copy" : "copies"}) and send a record every second
    </button>
  </>;
}

// Topics that cannot be written as they should come first, wherever their names stand.
function urgency(partitions: Record<string, Cell>): number {
  const found = URGENT.findIndex((each) => Object.values(partitions).some(({ state }) => state === each));
  return found < 0 ? URGENT.length : found;
}

export function Cluster({ state }: { state: ClusterView | null }): JSX.Element {
  if (!state) return <h1>Cluster</h1>;
  const topics = Object.entries(state.topics).sort(([one, left], [other, right]) => urgency(left) - urgency(right) || internalLast(one, other));
  return <>
    <h1>Cluster</h1>
    <section><h2>Brokers</h2><Brokers state={state} /></section>
    <section>
      <h2>Partitions</h2>
      {topics.length ? topics.map(([topic, partitions]) => <Topic key={topic} topic={topic} partitions={partitions} />) : <FirstTopic state={state} />}
      {state.topics_left_out > 0 && <p class="soft">{counted(state.topics_left_out, "more topic")} under <a href="#/t">Topics</a>. Those with problems are shown here first.</p>}
    </section>
  </>;
}
