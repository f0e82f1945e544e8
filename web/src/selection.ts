// The chosen body: it glows in every model, and the panel says what it is and where.

import * as THREE from "three";
import type { Clock } from "./clock";
import { digits } from "./elements";
import type { Model } from "./model";
import type { SceneMessage } from "./protocol";
import type { Track } from "./track";

/** What is shown while nothing is recorded or live has no track. */
export interface Posed {
  model: Model;
  track: Track | null;
}

export class Selection {
  body: number | null = null;

  choose(body: number | null, posed: Posed[], accent: THREE.Color): void {
    this.body = body;
    for (const { model } of posed) model.highlight(body, accent);
  }

  /** Names and values of the chosen body; none where there is none. */
  rows(scene: SceneMessage, posed: Posed[], clock: Clock): [string, string][] {
    const data = this.body === null ? undefined : scene.bodies[this.body];
    if (!data || !posed.length) return [];
    const { x, y, z } = posed[0]!.model.bodies[this.body!]!.position;
    const rows: [string, string][] = [
      ["body", data.name], ["position [m]", [x, y, z].map((n) => n.toFixed(3)).join("  ")], ["mass [kg]", digits(data.mass)],
    ];
    if (data.joints.length) rows.push(["joints", data.joints.join(", ")]);
    for (const { track } of posed) {
      if (!track?.count) continue;
      for (const joint of data.joints) {
        const channel = track.channels.findIndex((one) => one.name === joint);
        if (channel < 0) continue;
        const value = digits(track.value(track.row(clock.t), channel));
        rows.push([`${joint}, ${track.label}`, `${value} ${track.channels[channel]!.unit}`]);
      }
    }
    return rows;
  }
}
