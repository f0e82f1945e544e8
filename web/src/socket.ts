// A socket to the server that sent the page, opened again where it breaks.

import { decode, type Message } from "./protocol";

const RETRY_MS = [250, 500, 1000, 2000];

/** Open the socket; returns a function that sends a request. The token is in the fragment, which no server sees. */
export function openSocket(
  receive: (message: Message) => void, say: (words: string) => void,
): (request: object) => void {
  const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
  let socket: WebSocket, failures = 0;
  const begin = () => {
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/socket?token=${token}`);
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", (event) => {
      failures = 0;
      receive(decode(new Uint8Array(event.data as ArrayBuffer)));
    });
    socket.addEventListener("close", () => {
      say(failures > 8 ? "The server has ended." : "Connecting …");
      setTimeout(begin, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
    });
  };
  begin();
  return (request) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(request));
  };
}
