// Requests to the broker that serves the page.

export class Refused extends Error {
  /** `outcome`: not_written, written or unknown, as the problem says. */
  constructor(message: string, readonly status: number, readonly outcome = "") {
    super(message);
  }
}

const READ_MS = 8000;
const WRITE_MS = 35000; // beyond request.timeout.ms

/** Sends a request and returns the parsed response; raises Refused with the broker's sentence. */
export async function request<T = unknown>(path: string, body: unknown = null, method = body === null ? "GET" : "POST", until?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  const options: RequestInit = { method, headers, signal: AbortSignal.any([AbortSignal.timeout(method === "GET" ? READ_MS : WRITE_MS), ...until ? [until] : []]) };
  if (body !== null) {
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  const response = await fetch(path, options);
  const value = await response.json();
  if (!response.ok) throw new Refused(`${value.error ?? response.status}: ${value.detail ?? value.title}`, response.status, value.outcome);
  return value as T;
}

/** A broker's sentence, or the browser's; browsers word a timeout in their own ways. */
export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.name === "TimeoutError" ? "The broker of this page has not answered in time." : error.message;
}

export const topicPath = (topic: string): string => `/v1/topics/${encodeURIComponent(topic)}`;
export const at = (topic: string, partition: number): string => `${topicPath(topic)}/partitions/${partition}`;
export const groupPath = (group: string): string => `/v1/groups/${encodeURIComponent(group)}`;
