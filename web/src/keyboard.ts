// The keys of the viewer, and the list of them.

import type { Clock } from "./clock";
import { element } from "./elements";
import { HOME, type Stage } from "./stage";

/** What keys act on. */
export interface Keyed {
  clock: Clock;
  stage: Stage;
  /** Seconds between two rows of what is shown. */
  rowLength: () => number;
  measure: () => void;
  save: () => void;
  toggleTheme: () => void;
  toggleControls: () => void;
  toggleHelp: () => void;
  clear: () => void;
  /** Flip the switch of a key; whether there is one. */
  press: (key: string) => boolean;
}

export function handleKey(event: KeyboardEvent, on: Keyed): void {
  const target = event.composedPath()[0];
  const typing = target instanceof HTMLInputElement && target.type !== "checkbox" && target.type !== "range";
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const { clock, stage } = on;
  const step = event.shiftKey ? 1 : on.rowLength();
  const keys: Record<string, () => void> = {
    " ": () => clock.toggle(),
    arrowleft: () => clock.seek(clock.t - step),
    arrowright: () => clock.seek(clock.t + step),
    home: () => clock.seek(clock.begin),
    end: () => clock.seek(clock.end),
    "[": () => clock.faster(-1),
    "]": () => clock.faster(1),
    l: () => clock.live && clock.follow(),
    f: () => stage.view(HOME),
    "1": () => stage.view([1, 0, 0.02]),
    "2": () => stage.view([0, -1, 0.02]),
    "3": () => stage.view([0, -0.001, 1]),
    m: on.measure,
    s: on.save,
    d: on.toggleTheme,
    p: on.toggleControls,
    "?": on.toggleHelp,
    escape: on.clear,
  };
  const name = event.key.toLowerCase();
  if (keys[name]) keys[name]();
  else if (!on.press(name)) return;
  event.preventDefault();
}

export function helpBox(): HTMLElement {
  const keys: [string, string][] = [
    ["Space", "play or pause"], ["← →", "one row; with Shift one second"], ["Home End", "begin, end"], ["[ ]", "slower, faster"],
    ["F 1 2 3", "frame all, front, side, top"], ["B C A T K G V", "bodies, collision shapes, frames, trails, contacts, grid, cameras"],
    ["M", "measure"], ["S", "save an image"], ["D", "light or dark"], ["P", "controls"], ["Esc", "clear"],
  ];
  const list = element("dl");
  for (const [key, does] of keys) list.append(element("dt", {}, key), element("dd", {}, does));
  return element("div", { class: "help", hidden: "" }, list);
}
