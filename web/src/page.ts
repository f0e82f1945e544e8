// Where messages come from: an element of the page holds them, or a socket to the server that sent the page.

import { decode, unpack } from "./protocol";
import { type GaussianSource, Viewer, type ViewerOptions } from "./viewer";

const RETRY_MS = [250, 500, 1000, 2000];

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

/** A socket to the server, opened again where it breaks; the token is in the fragment, which no server sees. */
function connect(host: HTMLElement, options: ViewerOptions): void {
  const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
  let socket: WebSocket, viewer: Viewer | null = null, failures = 0;
  const begin = () => {
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/socket?token=${token}`);
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", (event) => {
      failures = 0;
      viewer?.receive(decode(new Uint8Array(event.data as ArrayBuffer)));
    });
    socket.addEventListener("close", () => {
      viewer?.say(failures > 8 ? "The server has ended." : "Connecting …", "warn");
      setTimeout(begin, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
    });
  };
  begin(); // first, since the server answers while the renderer starts
  viewer = started(host, {
    ...options,
    send: (request) => {
      if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(request));
    },
  });
}
