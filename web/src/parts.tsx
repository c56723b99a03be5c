// What several views use. Contents of records, names and messages become text nodes; the content security policy forbids markup.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Refused, messageOf } from "./api";
import { pausedAt } from "./live";
import { link, moment } from "./words";

/** A table that scrolls by itself. Columns are names, with a trailing # for numbers. `cards`: its rows are Cells, and cards in a narrow window. */
export function Table({ label, columns, cards, children }: { label: string; columns: string[]; cards?: boolean; children: ComponentChildren }): JSX.Element {
  return <div class={cards ? "scroll cards" : "scroll"} tabIndex={0} role="region" aria-label={label}>
    <table>
      <thead><tr>{columns.map((name) => <th scope="col" class={name.endsWith("#") ? "number" : undefined}>{name.replace(/#$/, "")}</th>)}</tr></thead>
      <tbody>{children}</tbody>
    </table>
  </div>;
}

/** The cells of a row of numbers and texts, aligned as its table's columns. */
export function Cells({ columns, of }: { columns: string[]; of: ComponentChildren[] }): JSX.Element {
  // A narrow window shows a row as a card, in which each value has the name of its column.
  return <>{of.map((cell, index) => <td class={columns[index]?.endsWith("#") ? "number" : undefined} data-column={columns[index]?.replace(/#$/, "")}>{cell}</td>)}</>;
}

export function Alert({ children }: { children: ComponentChildren }): JSX.Element {
  return <p class="failed" role="alert">{children}</p>;
}

/** In a view without a history, while the page shows an earlier time. */
export function PresentOnly(): JSX.Element | null {
  const at = pausedAt.value;
  return at === null ? null : <p class="present" role="note">This view shows the present, not {moment(at)}: brokers keep no history of it.</p>;
}

/** The heading of a partition's views, with links from each to the others. */
export function PartitionHead({ topic, number, present }: { topic: string; number: number; present: string }): JSX.Element {
  const tabs = [["", "Lanes"], ["records", "Records"], ["events", "Events"]] as const;
  return <>
    <h1>{topic}-{number}</h1>
    <nav class="tabs" aria-label={`Views of ${topic}-${number}`}>
      {tabs.map(([tab, name]) => <a href={link(topic, number, tab)} aria-current={tab === present ? "page" : undefined}>{name}</a>)}
    </nav>
  </>;
}

export interface Polled<T> {
  value: T | null;
  failed: unknown;
}

const RETRY_MS = 5000;

/** Reads again and again while the page is visible, the next time only when the last has ended; what has become due meanwhile when it becomes visible. */
export function usePolled<T>(periodMs: number, read: () => Promise<T>, inputs: readonly unknown[] = []): Polled<T> {
  const [polled, setPolled] = useState<Polled<T>>({ value: null, failed: null });
  useEffect(() => {
    let [timer, dueAt] = [0, 0];
    let [busy, ended] = [false, false];
    const wait = () => { timer = setTimeout(() => void once(), dueAt - performance.now()); };
    async function once(): Promise<void> {
      if (busy || document.hidden) return;
      clearTimeout(timer);
      if (performance.now() < dueAt) return wait();
      busy = true;
      let pause = periodMs;
      try {
        const value = await read();
        if (!ended) setPolled({ value, failed: null });
      } catch (failed) {
        // What the broker has refused, it would refuse again.
        if (!(failed instanceof Refused)) pause = Math.min(periodMs, RETRY_MS);
        if (!ended) setPolled((before) => ({ ...before, failed }));
      }
      busy = false;
      dueAt = performance.now() + pause;
      if (!ended) wait();
    }
    const look = () => void once();
    look();
    addEventListener("visibilitychange", look);
    return () => { ended = true; clearTimeout(timer); removeEventListener("visibilitychange", look); };
  }, inputs);
  return polled;
}

/** A value that has not changed for so long. */
export function useSettled<T>(value: T, ms: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

export const sentenceOf = (failed: unknown): string | null => failed === null ? null : messageOf(failed);
