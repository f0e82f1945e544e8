// What is what, where the panel is closed: the model in its own colours, ghosts in theirs.

import { element } from "./elements";
import type { Track } from "./track";

export const COLOURS = {
  light: ["#2459c9", "#c8660a", "#0b8457", "#b8253a", "#7346c4", "#08798f", "#a8318c", "#6b7414"],
  dark: ["#7eaaff", "#f2a65a", "#54cf9f", "#ff8595", "#bb9bff", "#52cbe0", "#f08fd6", "#c5cf5c"],
};
/** Most tracks that are named; of a grid of worlds more are shown. */
export const MOST_LISTED = 8;

export class Legend {
  readonly root = element("div", { class: "legend", hidden: "" });

  show(tracks: { track: Track; colour: string }[]): void {
    const listed = tracks.slice(0, MOST_LISTED);
    this.root.hidden = listed.length < 2;
    this.root.replaceChildren(
      ...listed.map(({ track, colour }) => {
        const kind = track.role === "ghost" ? "ghost" : "solid";
        return element("span", { class: kind, style: `--swatch: ${colour}` }, track.label);
      }),
      ...(listed.some(({ track }) => track.errors.length) ? [element("span", { class: "error" }, "error")] : []),
    );
  }
}
