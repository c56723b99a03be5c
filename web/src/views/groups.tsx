// Consumer groups: how far each is behind, who reads what, and a reset of offsets with a preview and a way back.
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { groupPath, messageOf, request } from "../api";
import { Chart } from "../chart";
import { pausedAt } from "../live";
import { Alert, Cells, Table, sentenceOf, usePolled, useSettled } from "../parts";
import { brokersOf, counted, link, moment, shown } from "../words";

const PERIOD_MS = 1000;
const LIST_PERIOD_MS = 5000;
const LAGS_MAX = 20; // groups of the list whose lag is read: each costs requests to the coordinator and to leaders
const TREND_MS = 10_000;
const NEVER_MS = 2 ** 31 - 1;
const SETTLE_MS = 200; // while the time is dragged
const CHART_POINTS = 600;

interface GroupLag {
  partitions?: { lag: number | null; member_id: string | null }[];
  lag_max?: { topic: string; partition: number } | null;
  failed?: string;
}

interface Listed {
  group: string;
  state: string;
  lag: GroupLag | null;
}

interface Committed {
  topic: string;
  partition: number;
  committed: number | null;
  log_end: number | null;
  lag: number | null;
  metadata: string | null;
  leader_epoch: number | null;
}

interface Member {
  member_id: string;
  client_id: string;
  host: string;
  software: string;
  assignment: { topic: string; partitions: number[] }[];
}

interface Group {
  state: string;
  generation: number;
  assignor: string | null;
  coordinator?: { id: number };
  members: Member[];
  offsets: Committed[];
}

function lagText(partitions: { lag: number | null }[]): string {
  const unknown = partitions.filter((each) => each.lag === null).length;
  return `${sumOf(partitions).toLocaleString("en")}${unknown ? `, and ${counted(unknown, "partition")} unknown` : ""}`;
}

const sumOf = (partitions: { lag: number | null }[]): number => partitions.reduce((total, each) => total + (each.lag ?? 0), 0);

// ---- the list ----

async function lagOf(group: string): Promise<GroupLag> {
  try {
    return await request<GroupLag>(`${groupPath(group)}/lag`);
  } catch (error) {
    return { failed: messageOf(error) };
  }
}

async function readGroups(): Promise<Listed[]> {
  const { groups } = await request<{ groups: { group: string; state: string }[] }>("/v1/groups");
  const listed: Listed[] = [];
  for (const [index, each] of groups.entries()) listed.push({ ...each, lag: index < LAGS_MAX ? await lagOf(each.group) : null });
  return listed;
}

const LIST_COLUMNS = ["Group", "State", "Lag (records)#", "Most behind in", "Members with partitions#"];

function GroupRow({ group, state, lag }: Listed): JSX.Element {
  const worst = lag?.lag_max;
  const members = lag?.partitions && new Set(lag.partitions.map((one) => one.member_id).filter((id) => id !== null)).size;
  return <tr><Cells columns={LIST_COLUMNS} of={[<a href={`#/g/${encodeURIComponent(group)}`}>{group}</a>, state,
    lag?.partitions ? lagText(lag.partitions) : lag?.failed ?? "open the group", worst ? `${worst.topic}-${worst.partition}` : "", members ?? ""]} /></tr>;
}

export function Groups(): JSX.Element {
  const at = useSettled(pausedAt.value, SETTLE_MS);
  return <>
    <h1>Groups</h1>
    <section>{at === null ? <PresentGroups /> : <PastGroups at={at} />}</section>
  </>;
}

function PresentGroups(): JSX.Element {
  const { value: groups, failed } = usePolled(LIST_PERIOD_MS, readGroups);
  return <>
      {failed !== null ? <Alert>{sentenceOf(failed)}</Alert> : !groups && <p class="soft">Reading the groups.</p>}
      {groups && (groups.length ? <Table cards label="Groups" columns={LIST_COLUMNS}>{groups.map((each) => <GroupRow key={each.group} {...each} />)}</Table>
        : <p>There are no consumer groups. A group begins with its first member or its first commit.</p>)}
  </>;
}

// ---- at an earlier time ----

interface PastGroup extends Group {
  group: string;
  sampled_ms: number;
}

interface Past {
  start: number | null;
  brokers: number[];
  groups: PastGroup[];
}

function usePast(at: number, group = ""): { value: Past | null; failed: unknown } {
  return usePolled(NEVER_MS, () => request<Past>(`/v1/history/groups?at=${Math.round(at)}${group && `&group=${encodeURIComponent(group)}`}`), [at, group]);
}

const sampledNote = ({ brokers, start }: Past): string => `As coordinators recorded the groups, once a second; from ${brokersOf(brokers)}, complete since ${start === null ? "now" : moment(start)}.`;

const PAST_COLUMNS = ["Group", "State", "Members#", "Partitions with committed offsets#", "Since"];

function PastGroups({ at }: { at: number }): JSX.Element {
  const { value, failed } = usePast(at);
  return <>
    {failed !== null && <Alert>{sentenceOf(failed)}</Alert>}
    {value && (value.groups.length ? <Table cards label="Groups" columns={PAST_COLUMNS}>
      {value.groups.map((each) => <tr key={each.group}><Cells columns={PAST_COLUMNS} of={[<a href={`#/g/${encodeURIComponent(each.group)}`}>{each.group}</a>, each.state, each.members.length,
        each.offsets.filter((one) => one.committed !== null).length, moment(each.sampled_ms)]} /></tr>)}
    </Table> : <p>No consumer group is known of this time.</p>)}
    {value && <p class="soft">{sampledNote(value)} Open a group for its lag.</p>}
  </>;
}

function PastGroupView({ name, at }: { name: string; at: number }): JSX.Element {
  const { value, failed } = usePast(at, name);
  const [group] = value?.groups ?? [];
  return <section>
    {failed !== null && <Alert>{sentenceOf(failed)}</Alert>}
    {failed === null && group && value && <>
      <GroupTables group={group} trend={[]} />
      <p class="soft">{sampledNote(value)} It was so since {moment(group.sampled_ms)}.</p>
    </>}
  </section>;
}

// ---- one group ----

type Trend = [ms: number, lag: number][];

function change(trend: Trend): string {
  const [now, sum] = trend.at(-1) ?? [0, 0];
  const [since, before] = trend.find(([ms]) => ms >= now - TREND_MS) ?? [now, sum];
  const seconds = Math.round((now - since) / 1000);
  if (!seconds || before === sum) return "";
  return `, ${Math.abs(sum - before).toLocaleString("en")} ${sum > before ? "more ▲" : "fewer ▼"} than ${seconds} s ago`;
}

function summary({ offsets }: Group, trend: Trend): string {
  if (!offsets.length) return "The group has committed no offsets and its members have no partitions.";
  const sum = sumOf(offsets);
  if (offsets.some((each) => each.lag === null)) return `The lag is at least ${counted(sum, "record")}${change(trend)}; some partitions have no committed offset, or no leader that answers.`;
  return sum ? `The group is ${counted(sum, "record")} behind${change(trend)}.` : `The group has committed everything up to the high watermark${change(trend)}.`;
}

const OFFSET_COLUMNS = ["Partition", "Committed#", "High watermark#", "Lag#", "Progress", "Member"];

function OffsetRow({ each, reader }: { each: Committed; reader: string }): JSX.Element {
  const name = `${each.topic}-${each.partition}`;
  // A first commit may lie below the log's start; a bar shows the part of the log's end that is committed.
  return <tr><Cells columns={OFFSET_COLUMNS} of={[<a href={link(each.topic, each.partition)}>{name}</a>, each.committed ?? "none", shown(each.log_end), shown(each.lag),
    each.lag !== null && <meter min={0} max={Math.max(1, each.log_end ?? 0)} value={each.committed ?? 0} aria-label={`${name}: committed ${each.committed} of ${each.log_end}`} />, reader]} /></tr>;
}

const MEMBER_COLUMNS = ["Member", "Client", "Host", "Library", "Partitions"];

function GroupTables({ group, trend }: { group: Group; trend: Trend }): JSX.Element {
  const readers = new Map(group.members.flatMap((member) => member.assignment.flatMap((one) => one.partitions.map((number) => [`${one.topic}-${number}`, member.member_id] as const))));
  return <>
    <p class="lead">{summary(group, trend)}</p>
    <p class="soft">State {group.state}, generation {group.generation}{group.assignor ? `, assignor ${group.assignor}` : ""}{group.coordinator ? `, coordinator broker ${group.coordinator.id}` : ""}.</p>
    <h2>Partitions</h2>
    <Table cards label="Partitions of the group" columns={OFFSET_COLUMNS}>
      {group.offsets.map((each) => <OffsetRow key={`${each.topic}-${each.partition}`} each={each} reader={readers.get(`${each.topic}-${each.partition}`) ?? "no member"} />)}
    </Table>
    {trend.length > 0 && <>
      <h2>Lag since this view was opened</h2>
      <Chart label="Lag in records" times={trend.map(([ms]) => ms)} values={trend.map(([, sum]) => sum)} />
    </>}
    <h2>Members</h2>
    {group.members.length ? <Table cards label="Members" columns={MEMBER_COLUMNS}>
      {group.members.map((each) => <tr key={each.member_id}><Cells columns={MEMBER_COLUMNS} of={[each.member_id, each.client_id, each.host, each.software,
        each.assignment.map((one) => `${one.topic} ${one.partitions.join(",")}`).join("; ") || "none"]} /></tr>)}
    </Table> : <p>The group has no members.</p>}
  </>;
}

// ---- reset ----

const GOALS = [["earliest", "the log's start"], ["latest", "the high watermark"], ["to_offset", "an offset"], ["shift_by", "forward or back by a number of records"],
  ["to_datetime", "the first record at or after a time"]] as const;

interface Moved {
  topic: string;
  partition: number;
  committed: number | null;
  new_offset: number;
}

/** What became of one offset of a commit by hand. */
interface Outcome {
  topic: string;
  partition: number;
  problem?: { detail: string };
}

function bodyOf(goal: string, value: string): Record<string, unknown> {
  if (goal === "earliest" || goal === "latest") return { to: goal };
  // What is no number goes to the broker, which says so: Number("") is 0.
  return { [goal]: goal !== "to_datetime" && /^[+-]?\d+$/.test(value) ? Number(value) : value };
}

const MOVED_COLUMNS = ["Partition", "Committed#", "New#"];

function MovedTable({ offsets }: { offsets: Moved[] }): JSX.Element {
  return <Table cards label="New offsets" columns={MOVED_COLUMNS}>
    {offsets.map((each) => <tr><Cells columns={MOVED_COLUMNS} of={[`${each.topic}-${each.partition}`, each.committed ?? "none", each.new_offset]} /></tr>)}
  </Table>;
}

function Reset({ name }: { name: string }): JSX.Element {
  const [goal, setGoal] = useState("earliest");
  const [result, setResult] = useState<JSX.Element | null>(null);
  const value = useRef<HTMLInputElement>(null);
  const attempt = async (act: () => Promise<JSX.Element>) => {
    try {
      setResult(await act());
    } catch (error) {
      setResult(<Alert>{messageOf(error)}</Alert>);
    }
  };
  const send = (body: Record<string, unknown>, dryRun: boolean) =>
    request<{ offsets: Moved[] }>(`${groupPath(name)}/offsets:reset`, { ...body, dry_run: dryRun });
  const restore = (before: Committed[]) => attempt(async () => {
    const offsets = before.filter((each) => each.committed !== null)
      .map(({ topic, partition, committed, metadata, leader_epoch: epoch }) => ({ topic, partition, offset: committed, metadata: metadata ?? "", leader_epoch: epoch ?? -1 }));
    const { offsets: restored } = await request<{ offsets: Outcome[] }>(`${groupPath(name)}/offsets`, { offsets }, "PUT");
    const refused = restored.filter((each) => each.problem);
    if (!refused.length) return <p>The offsets are as they were before the reset.</p>;
    const why = refused.map((each) => `${each.topic}-${each.partition} (${each.problem?.detail})`).join(", ");
    return <Alert>Not all offsets are as they were before the reset. Not restored: {why}.</Alert>;
  });
  const reset = (body: Record<string, unknown>) => attempt(async () => {
    const { offsets: before } = await request<{ offsets: Committed[] }>(`${groupPath(name)}/offsets`);
    const { offsets } = await send(body, false);
    return <><p>The offsets are reset.</p><MovedTable offsets={offsets} /><button onClick={() => void restore(before)}>Undo</button></>;
  });
  const preview = (body: Record<string, unknown>) => attempt(async () => {
    const { offsets } = await send(body, true);
    return <><p>Nothing is changed yet. The reset would commit:</p><MovedTable offsets={offsets} /><button class="main" onClick={() => void reset(body)}>Reset the offsets</button></>;
  });
  const submit = (event: Event) => {
    event.preventDefault();
    void preview(bodyOf(goal, value.current?.value.trim() ?? ""));
  };
  return <>
    <form onSubmit={submit}>
      <label>Move all committed offsets to
        <select name="goal" value={goal} onChange={(event) => setGoal(event.currentTarget.value)}>
          {GOALS.map(([kind, words]) => <option value={kind}>{words}</option>)}
        </select>
      </label>
      <label hidden={goal === "earliest" || goal === "latest"}>Value<input ref={value} name="value" autocomplete="off" placeholder="2026-11-23T14:20Z" /></label>
      <button class="main">Preview</button>
    </form>
    <div role="status">{result}</div>
  </>;
}

export function GroupView({ name }: { name: string }): JSX.Element {
  const at = useSettled(pausedAt.value, SETTLE_MS);
  return <>
    <p><a href="#/g">Groups</a></p>
    <h1>{name}</h1>
    {at === null ? <PresentGroup name={name} /> : <PastGroupView name={name} at={at} />}
  </>;
}

function PresentGroup({ name }: { name: string }): JSX.Element {
  const trend = useRef<Trend>([]);
  const { value: group, failed } = usePolled(PERIOD_MS, async () => {
    const read = await request<Group>(groupPath(name));
    trend.current = [...trend.current.slice(-CHART_POINTS + 1), [Date.now(), sumOf(read.offsets)]];
    return read;
  }, [name]);
  const members = group?.members ?? [];
  const latest = trend.current.at(-1)?.[0];
  return <>
    <section>
      {failed !== null ? <Alert>{latest === undefined ? sentenceOf(failed) : `No data since ${moment(latest)}: ${sentenceOf(failed)}`}</Alert> : !group && <p class="soft">Reading the group.</p>}
      {group && failed === null && <GroupTables group={group} trend={trend.current} />}
    </section>
    <section>
      <h2>Reset offsets</h2>
      {members.length > 0 && <p>Only a group without members can be reset: stop {members.map((each) => each.member_id).join(", ")} first.</p>}
      <div hidden={members.length > 0}><Reset name={name} /></div>
    </section>
  </>;
}
