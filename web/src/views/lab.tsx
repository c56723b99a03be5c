// The lab's stories in lanes: the rules of the product, played by a script. Two ways of truncation stand side by side.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { request } from "../api";
import { LEGEND, LaneRows, TERMS } from "../lane";
import { apply } from "../live";
import { Alert, Cells, Table, sentenceOf, usePolled } from "../parts";
import { explain } from "../shell";
import type { Change, Partition, Replica } from "../types";

const NEVER_MS = 2 ** 31 - 1;
const RULES = [["leader-epoch", "by leader epoch"], ["high-watermark", "to the high watermark"]] as const;

interface StoryState {
  summary: string;
  partition: Omit<Partition, "leader" | "leader_epoch" | "replicas"> & { leader: string | null; leader_epoch: number | null; replicas: Record<string, Omit<Replica, "lag_records" | "why">> };
}

interface Story {
  name: string;
  about: string;
  before: StoryState;
  steps: { number: number; w: string; lines: string[]; changes: Change[] }[];
  lost: string[];
  diverged: string[];
  text: string;
}

// ---- the list ----

const COLUMNS = ["Story", "About", "References"];

export function Stories(): JSX.Element {
  const { value, failed } = usePolled(NEVER_MS, () => request<{ stories: { name: string; about: string; references: string[] }[] }>("/v1/lab/stories"));
  return <>
    <h1>Lab</h1>
    <section>
      <p>Known failures step by step: the rules are those of the brokers, and a script decides what is delivered, cut or killed.</p>
      {failed !== null && <Alert>{sentenceOf(failed)}</Alert>}
      {value && <Table cards label="Stories" columns={COLUMNS}>
        {value.stories.map((each) => <tr key={each.name}><Cells columns={COLUMNS} of={[<a href={`#/lab/${each.name}`}>{each.name}</a>, <span class="text">{each.about}</span>, each.references.join(", ")]} /></tr>)}
      </Table>}
    </section>
  </>;
}

// ---- one story ----

function statesOf({ before, steps }: Story): StoryState[] {
  const states = [before];
  for (const { changes } of steps) states.push(apply(states.at(-1) ?? before, changes));
  return states;
}

// A story's replicas as the lanes want those of a partition. A script gives no reasons.
function partitionOf({ partition }: StoryState): Partition {
  const replicas = Object.entries(partition.replicas).map(([name, each]) => [name, { ...each, why: "", lag_records: each.leo === null ? null : 0 }] as const);
  return { ...partition, leader: partition.leader === null ? null : { id: partition.leader }, leader_epoch: partition.leader_epoch ?? 0, replicas: Object.fromEntries(replicas) };
}

/** What each step shows: the logs' contents differ at times where no state does, and then only sentences say so. */
function shownOf(story: Story): string[] {
  return statesOf(story).map(({ partition }, index) => JSON.stringify([partition, story.steps[index - 1]?.w, story.steps[index - 1]?.lines]));
}

/** The first step in which two runs of a story differ; -1: none does. */
function partingStep(left: Story, right: Story): number {
  const other = shownOf(right);
  return shownOf(left).findIndex((each, index) => each !== other[index]);
}

function Run({ story, at, title }: { story: Story; at: number; title: string }): JSX.Element {
  const states = statesOf(story);
  const state = states[Math.min(at, states.length - 1)] ?? story.before;
  const step = story.steps[at - 1];
  return <section class="run">
    <h2>{title}</h2>
    <p class="lead">{step ? `${step.number}. ${step.w}` : "Before the first step"}</p>
    <LaneRows partition={partitionOf(state)} />
    {step && <ul>{step.lines.map((line) => <li>{line}</li>)}</ul>}
    {at >= story.steps.length && <p class={story.lost.length ? "failed" : ""}>{story.lost.length ? `Lost: ${story.lost.join(", ")}.` : "No acknowledged record is lost."}{story.diverged.length > 0 && ` The logs differ at ${story.diverged.join(", ")}.`}</p>}
    <details><summary>As minikafka lab run prints it</summary><pre tabIndex={0} role="region" aria-label={`Text of the story, ${title}`}>{story.text}</pre></details>
  </section>;
}

function readBoth(name: string): Promise<Story[]> {
  return Promise.all(RULES.map(([rule]) => request<Story>(`/v1/lab/stories/${encodeURIComponent(name)}?truncation=${rule}`)));
}

export function StoryView({ name, query }: { name: string; query: URLSearchParams }): JSX.Element {
  const { value, failed } = usePolled(NEVER_MS, () => readBoth(name), [name]);
  const [left, right] = value ?? [];
  const last = Math.max(0, ...(value ?? []).map((each) => each.steps.length));
  const [wanted, setAt] = useState(Math.max(0, Math.trunc(Number(query.get("step"))) || 0));
  const at = Math.min(last, wanted);
  const go = (next: number) => setAt(Math.min(last, Math.max(0, next)));
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if ((event.target as Element).closest("input, select, textarea, pre")) return;
      if (event.key === "ArrowRight") setAt((now) => Math.min(last, now + 1));
      if (event.key === "ArrowLeft") setAt((now) => Math.max(0, Math.min(last, now) - 1));
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [last]);
  const parting = left && right ? partingStep(left, right) : -1;
  return <>
    <p><a href="#/lab">Lab</a></p>
    <h1>{name}</h1>
    {failed !== null && <section><Alert>{sentenceOf(failed)}</Alert></section>}
    {left && right && <>
      <section>
        <p>{left.about}</p>
        <p class="soft">{LEGEND} <button onClick={() => explain(TERMS)}>HW, LEO?</button></p>
        <p class="lead" role="status">{parting < 0 ? "Both rules give the same steps." : `The two rules part at step ${left.steps[parting - 1]?.number ?? 0}.`}</p>
        <div class="why">
          <button onClick={() => go(at - 1)} disabled={at === 0}>◀ Back</button><button class="main" onClick={() => go(at + 1)} disabled={at === last}>Next ▶</button>
          <input type="range" aria-label="Step" min={0} max={last} value={at} onInput={(event) => go(Number(event.currentTarget.value))} />
          <output>step {at} of {last}</output>
          {parting > 0 && <button onClick={() => go(parting)}>Where they part</button>}
        </div>
      </section>
      <div class="runs">{RULES.map(([rule, words], index) => value?.[index] && <Run key={rule} story={value[index]} at={at} title={`Truncation ${words}${at >= parting && parting > 0 ? ": the two differ" : ""}`} />)}</div>
    </>}
  </>;
}
