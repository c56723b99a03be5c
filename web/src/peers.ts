// When the broker of the page stops, the same view opens at another broker.
import { effect, signal } from "@preact/signals";
import { lostSince, refused } from "./live";

const PROBE_MS = 1000;
const AGAIN_MS = 5000; // no other broker answers either: one may come back sooner than this one
const LEAVE_MS = 2000;

/** Addresses of the other brokers. */
export const peers = signal<string[]>([]);
/** The address to which the page is about to move. */
export const leavingFor = signal<string | null>(null);
const stays = signal(false);

export const stay = (): void => { stays.value = true; };

// An answer of another origin cannot be read, but a broker that is down gives none.
async function isAlive(url: string): Promise<boolean> {
  try {
    await fetch(`${url}/healthz`, { mode: "no-cors", signal: AbortSignal.timeout(PROBE_MS) });
    return true;
  } catch {
    return false; // its only meaning here: no answer
  }
}

async function firstAlive(): Promise<string | null> {
  for (const url of peers.value) if (new URL(url).origin !== location.origin && await isAlive(url)) return url;
  return null;
}

let timer = 0;
effect(() => {
  clearTimeout(timer);
  const since = lostSince.value;
  if (since === null) {
    stays.value = false;
    leavingFor.value = null;
    return;
  }
  if (stays.value) {
    leavingFor.value = null;
    return;
  }
  const probe = async () => {
    const isMissed = !document.hidden && !refused.value && !await isAlive(location.origin);
    const url = isMissed ? await firstAlive() : null;
    if (lostSince.value !== since || stays.value) return;
    if (url === null) {
      timer = setTimeout(() => void probe(), AGAIN_MS);
      return;
    }
    leavingFor.value = url;
    timer = setTimeout(() => location.assign(`${url}/${location.hash}`), LEAVE_MS);
  };
  timer = setTimeout(() => void probe(), PROBE_MS);
});
