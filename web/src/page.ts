// Where messages come from: an element of the page holds them, or a socket to the server that sent the page.

import { unpack } from "./protocol";
import { openSocket } from "./socket";
import { type GaussianSource, Viewer, type ViewerOptions } from "./viewer";

declare global {
  interface Window {
    instepViewers: Viewer[];
  }
}

/** Open every viewer of the page. */
export function open(gaussians?: GaussianSource): void {
  window.instepViewers = [];
  for (const host of document.querySelectorAll<HTMLElement>("[data-instep-viewer]")) {
    const source = host.dataset["instepViewer"]!;
    const options: ViewerOptions = gaussians ? { gaussians } : {};
    const theme = new URLSearchParams(location.hash.slice(1)).get("theme") ?? document.documentElement.dataset["theme"];
    if (theme === "light" || theme === "dark") options.theme = theme;
    if (source === "socket") connect(host, options);
    else void embedded(host, source, options);
  }
}

/** Messages in a script element, as base64 of gzip. */
async function embedded(host: HTMLElement, id: string, options: ViewerOptions): Promise<void> {
  const viewer = started(host, { ...options, panel: false });
  if (!viewer) return;
  const packed = document.getElementById(id)!.textContent!.trim();
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const container = new Uint8Array(await new Response(stream).arrayBuffer());
  for (const message of unpack(container)) viewer.receive(message);
  viewer.setOpened();
  viewer.clock.playing = !window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  viewer.clock.tell();
  new MutationObserver(() => {
    const theme = document.documentElement.dataset["theme"];
    if (theme === "light" || theme === "dark") viewer.setTheme(theme);
  }).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
}

/** A viewer, or none where the browser has no WebGL: the page then shows its video. */
function started(host: HTMLElement, options: ViewerOptions): Viewer | null {
  try {
    const viewer = new Viewer(host, options);
    window.instepViewers.push(viewer);
    document.documentElement.dataset["viewer"] = "yes";
    return viewer;
  } catch (error) {
    document.documentElement.dataset["viewer"] = "no";
    host.textContent = `This browser cannot show 3D (${(error as Error).message}).`;
    return null;
  }
}

/** A viewer of what the server sends. */
function connect(host: HTMLElement, options: ViewerOptions): void {
  let viewer: Viewer | null = null;
  // First, since the server answers while the renderer starts.
  const send = openSocket((message) => viewer?.receive(message), (words) => viewer?.say(words, "warn"));
  viewer = started(host, { ...options, send });
}
