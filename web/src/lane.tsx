// One lane per replica on one axis of offsets. The broker says what each replica has; here it is only drawn.
import type { JSX } from "preact";
import { explain } from "./shell";
import type { Partition, Replica } from "./types";
import { shown } from "./words";

export const wide = matchMedia("(min-width: 641px)");
const OFFSETS_WIDE = 30;
const OFFSETS_NARROW = 12;

export const TERMS = "The high watermark (HW) is the offset below which every replica in the ISR has all records. Consumers read only below it. LEO, the log end offset, is the offset of the next record in a replica's log. The last stable offset (LSO) is the end for consumers with read_committed: the first record of the oldest open transaction, or the HW.";

export const LEGEND = "Solid: the replica knows that the record is committed. Hatched: in its log, but the replica does not know that yet. Thick bar: HW. Thin bar: LEO.";

// Without a leader that knows the follower, the API has the follower's own LEO in its place.
const knownToLeader = (replica: Replica): number | null => replica.lag_records === null ? null : replica.leo;

interface Drawn {
  replica: Replica;
  from: number;
  to: number;
  partition: Partition;
}

function Lane({ replica, from, to, partition }: Drawn): JSX.Element {
  const { own_leo: leo, hw } = replica;
  const leader = partition.leader?.id ?? null;
  const lso = partition.last_stable_offset;
  const leads = replica.id === leader;
  const known = knownToLeader(replica);
  const [chip, standing] = replica.in_sync ? ["chip", "✓ in the ISR"] : ["chip out", "✗ out of the ISR"];
  const cells: JSX.Element[] = [];
  for (let offset = from; offset <= to; offset++) {
    const kind = leo === null ? "unknown" : offset >= leo ? "" : hw !== null && offset < hw ? "committed" : "open";
    const marks = (leads && offset === lso && lso !== hw ? " lso" : "") + (offset === hw ? " hw" : "") + (offset === leo ? " leo" : "");
    cells.push(<span key={offset} class={`cell ${kind}${marks}`}>{leo !== null && offset < leo ? offset : ""}</span>);
  }
  return <div class={leads ? "lane leader" : "lane follower"} data-replica={replica.id}>
    <div class="head">
      <b>{replica.id}{leads ? " ♛ leader" : replica.role === "unknown" ? " role unknown" : ` ${replica.role}`}{replica.cut_off ? ", cut off" : ""}</b>
      {replica.why ? <button class={chip} onClick={() => explain(replica.why)}>{standing}</button> : <span class={chip}>{standing}</span>}
      <span>LEO {shown(leo)}</span><span>HW {shown(hw)}</span>
      {leads ? <>{lso !== undefined && <span>LSO {shown(lso)}</span>}<span>epoch {partition.leader_epoch}</span></>
        : leader !== null && <span class="soft">{known === null ? `leader ${leader} does not know its LEO` : `leader ${leader} knows ${known}${replica.lag_records ? `: ${replica.lag_records} behind` : ""}`}</span>}
      <span class="soft">{leo === null ? `no word from broker ${replica.id}` : ""}</span>
    </div>
    <div class="cells" aria-hidden="true">{cells}</div>
  </div>;
}

export const replicasOf = ({ order, replicas }: Partition): Replica[] => order.map((id) => replicas[id]).filter((each) => each !== undefined);

/** One lane per replica. */
export function LaneRows({ partition }: { partition: Partition }): JSX.Element {
  const replicas = replicasOf(partition);
  const to = Math.max(0, ...replicas.map((each) => each.own_leo ?? 0));
  const from = Math.max(0, to - (wide.matches ? OFFSETS_WIDE : OFFSETS_NARROW));
  return <>{replicas.map((each) => <Lane key={each.id} replica={each} from={from} to={to} partition={partition} />)}</>;
}

export function Lanes({ partition, why }: { partition: Partition; why: string }): JSX.Element {
  return <section>
    <h2>Replicas, leader epoch {partition.leader_epoch}, min ISR {shown(partition.min_insync_replicas)}</h2>
    <p class="why"><button onClick={() => explain(TERMS)}>HW, LEO, LSO?</button><span>{why}</span></p>
    <LaneRows partition={partition} />
    <p class="soft">{LEGEND} Dotted bar: LSO, if it is below the HW. Read four times a second.</p>
  </section>;
}

export const VALUES = ["Replica", "Role", "In the ISR", "LEO", "LEO known to the leader", "HW", "Last fetch (ms ago)"];

export function valuesOf(each: Replica): (string | number)[] {
  return [each.id, each.role, each.in_sync ? "yes" : "no", shown(each.own_leo), shown(knownToLeader(each)), shown(each.hw), each.last_fetch_ms_ago ?? ""];
}
