// Topics, and one topic: partitions and settings.
import type { JSX } from "preact";
import { request, topicPath } from "../api";
import { pausedAt } from "../live";
import { Alert, Cells, PresentOnly, Table, sentenceOf, usePolled } from "../parts";
import type { Cell, ClusterView } from "../types";
import { bytes, internalLast, link } from "../words";

const PERIOD_MS = 5000;

interface Summary {
  topic: string;
  partition_count: number;
  replication_factor: number;
  bytes?: number | null;
  records?: number | null;
  under_replicated?: number | null;
  without_leader?: number | null;
}

const counted = (value: number | null | undefined): string => value === null || value === undefined ? "unknown" : value.toLocaleString("en");
const COLUMNS = ["Topic", "Partitions#", "Replication factor#", "Under-replicated#", "Without leader#", "Records#", "Size#"];

export function Topics(): JSX.Element {
  const { value, failed } = usePolled(PERIOD_MS, () => request<{ topics: Summary[] }>("/v1/topics?with=summary"));
  return <>
    <h1>Topics</h1>
    <PresentOnly />
    <section>
      {failed !== null && <Alert>{sentenceOf(failed)}</Alert>}
      {value && (value.topics.length ? <Table cards label="Topics" columns={COLUMNS}>
        {[...value.topics].sort((one, other) => internalLast(one.topic, other.topic)).map((each) => <tr key={each.topic}><Cells columns={COLUMNS} of={[<a href={`#/t/${encodeURIComponent(each.topic)}`}>{each.topic}</a>, each.partition_count, each.replication_factor,
          counted(each.under_replicated), counted(each.without_leader), counted(each.records), each.bytes === null || each.bytes === undefined ? "unknown" : bytes(each.bytes)]} /></tr>)}
      </Table> : <p>There are no topics yet. <a href="#/">Cluster</a> creates one.</p>)}
    </section>
  </>;
}

interface Topic {
  config: Record<string, string>;
  partitions: { partition: number; leader: number; isr: number[]; replicas: number[] }[];
}

// The live state has the partitions of some topics only; a topic that is not among them has no partition below min ISR.
function cellsOf({ partitions }: Topic): Record<string, Cell> {
  return Object.fromEntries(partitions.map(({ partition, leader, isr, replicas }) =>
    [partition, { leader: leader < 0 ? null : leader, isr, replicas, state: leader < 0 ? "offline" : isr.length < replicas.length ? "under-replicated" : "ok" }]));
}

const PARTITION_COLUMNS = ["Partition", "Leader", "ISR", "Replicas", "State", "Contents"];

function PartitionRow({ topic, number, cell }: { topic: string; number: string; cell: Cell }): JSX.Element {
  return <tr><Cells columns={PARTITION_COLUMNS} of={[<a href={link(topic, number)}>{topic}-{number}</a>, cell.leader ?? "none", cell.isr.join(", "), cell.replicas.join(", "),
    <span class={cell.state === "ok" ? "chip" : "chip out"}>{cell.state === "ok" ? "✓ in sync" : `✗ ${cell.state}`}</span>, <a href={link(topic, number, "records")}>Records</a>]} /></tr>;
}

export function TopicView({ name, state }: { name: string; state: ClusterView | null }): JSX.Element {
  const { value, failed } = usePolled(PERIOD_MS, () => request<Topic>(topicPath(name)), [name]);
  const partitions = state?.topics[name] ?? (pausedAt.value === null && value ? cellsOf(value) : undefined);
  return <>
    <p><a href="#/t">Topics</a></p>
    <h1>{name}</h1>
    {failed !== null && <section><Alert>{sentenceOf(failed)}</Alert></section>}
    {partitions && <section>
      <h2>Partitions</h2>
      <Table cards label="Partitions" columns={PARTITION_COLUMNS}>{Object.entries(partitions).map(([number, cell]) => <PartitionRow key={number} topic={name} number={number} cell={cell} />)}</Table>
    </section>}
    {value && <section>
      <h2>Settings</h2>
      <PresentOnly />
      {Object.keys(value.config).length ? <Table label="Settings" columns={["Setting", "Value"]}>
        {Object.entries(value.config).map(([setting, text]) => <tr key={setting}><td>{setting}</td><td class="text">{text}</td></tr>)}
      </Table> : <p>The topic has no settings of its own: the brokers' defaults apply.</p>}
    </section>}
  </>;
}
