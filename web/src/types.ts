// What brokers send, as far as the console uses it. docs/console.md and /openapi.json describe it.

export interface Replica {
  /** The broker's id; in a story, its name. */
  id: number | string;
  role: string;
  /** Only in a story: neither peers nor the controller reach it. */
  cut_off?: boolean;
  in_sync: boolean;
  why: string;
  /** What the leader knows of this replica's log; without such a leader, the replica's own log end offset. */
  leo: number | null;
  own_leo: number | null;
  hw: number | null;
  lag_records: number | null;
  last_fetch_ms_ago?: number | null;
}

export interface Partition {
  leader: { id: number | string; url?: string } | null;
  leader_epoch: number;
  min_insync_replicas: number | null;
  log_start_offset?: number | null;
  last_stable_offset?: number | null;
  high_watermark: number | null;
  log_end_offset?: number | null;
  order: (number | string)[];
  replicas: Record<string, Replica>;
}

export interface PartitionView {
  summary: string;
  /** Why the metadata in the state may be out of date; empty if it is not. */
  caution?: string;
  why_watermark: string;
  why_stable_offset: string;
  partition: Partition;
  producers: Record<string, Producer>;
  producer_count: number;
}

export interface Producer {
  producer_id: number;
  producer_epoch: number;
  last_sequence: number;
  last_timestamp: number;
  transaction_start_offset: number | null;
}

export interface BrokerLoad {
  id: number;
  url: string;
  fenced: boolean;
  why: string;
  leader_count: number;
  in_sync_count: number;
  replica_count: number;
}

export interface Cell {
  leader: number | null;
  isr: number[];
  replicas: number[];
  state: "ok" | "under-replicated" | "under-min-isr" | "offline";
}

export interface ClusterView {
  summary: string;
  caution?: string;
  controller: number | null;
  brokers: Record<string, BrokerLoad>;
  topics: Record<string, Record<string, Cell>>;
  topics_left_out: number;
}

export interface Failure {
  problem: { error: string; detail: string };
}

/** [path, value], [path] of a member that is gone, or [path, names, values] of some members of the object at the path. */
export type Change = [path: string[]] | [path: string[], value: unknown] | [path: string[], names: string[], values: unknown[]];
