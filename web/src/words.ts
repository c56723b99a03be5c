// Addresses of views, and values as text.

export const link = (topic: string, partition: number | string, tab = ""): string => `#/t/${encodeURIComponent(topic)}/${partition}${tab && `/${tab}`}`;

export const shown = (value: number | string | null | undefined): string => value === null || value === undefined ? "unknown" : String(value);

export const counted = (count: number, noun: string): string => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

export const brokersOf = (ids: readonly (number | string)[]): string => ids.length === 1 ? `broker ${ids[0]}` : `brokers ${ids.join(", ")}`;

export const capital = (sentence: string): string => sentence.charAt(0).toUpperCase() + sentence.slice(1);

export const plain = (kind: string): string => kind.replaceAll("_", " ").replace("isr", "ISR");

/** Local time with milliseconds. Timestamps are whatever a producer wrote: not every one is a time. */
export function moment(ms: number): string {
  if (!Number.isSafeInteger(ms)) return Number.isNaN(ms) ? "unknown time" : "beyond 2^53 ms";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  return `${date.toLocaleDateString("sv")} ${clock(ms)}`;
}

export function clock(ms: number): string {
  const date = new Date(ms);
  return `${date.toLocaleTimeString("sv")}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function bytes(count: number): string {
  const power = Math.min(UNITS.length - 1, count < 1000 ? 0 : Math.floor(Math.log10(count) / 3));
  return power === 0 ? `${count} B` : `${(count / 1000 ** power).toFixed(1)} ${UNITS[power]}`;
}

/** Sorts topics by name, those of the brokers themselves (__consumer_offsets) behind those of people. */
export const internalLast = (one: string, other: string): number => Number(one.startsWith("__")) - Number(other.startsWith("__")) || (one < other ? -1 : Number(one > other));
