// Clicks on the view: pick a body, or measure the distance between two points.

import * as THREE from "three";
import { element } from "./elements";
import type { Stage } from "./stage";

const STILL_PX = 4;

export interface Hit {
  body: number;
  point: THREE.Vector3;
}

export class Picking {
  measuring = false;
  private readonly caster = new THREE.Raycaster();
  private readonly line: THREE.Line;
  private readonly points: THREE.Vector3[] = [];
  private readonly label = element("div", { class: "tag", hidden: "" });

  constructor(
    private readonly stage: Stage, private readonly targets: () => THREE.Object3D[], private readonly pick: (hit: Hit | null) => void,
  ) {
    const material = new THREE.LineBasicMaterial({ color: 0xd6336c, depthTest: false });
    this.line = new THREE.Line(new THREE.BufferGeometry(), material);
    this.line.renderOrder = 8;
    this.line.visible = false;
    stage.scene.add(this.line);
    stage.host.append(this.label);
    const canvas = stage.renderer.domElement;
    let from: [number, number] = [0, 0];
    canvas.addEventListener("pointerdown", (event) => (from = [event.clientX, event.clientY]));
    canvas.addEventListener("pointerup", (event) => {
      // A drag turns the view; only a click picks.
      if (Math.hypot(event.clientX - from[0], event.clientY - from[1]) < STILL_PX && event.button === 0) this.click(event);
    });
    stage.onFrame(() => (this.placeLabel(), false));
  }

  setMeasuring(on: boolean): void {
    this.measuring = on;
    this.points.length = 0;
    this.line.visible = false;
    this.label.hidden = true;
    this.stage.renderer.domElement.style.cursor = on ? "crosshair" : "";
    this.stage.invalidate();
  }

  /** What is at a place of the canvas. */
  at(clientX: number, clientY: number): Hit | null {
    const box = this.stage.renderer.domElement.getBoundingClientRect();
    const place = new THREE.Vector2(
      (2 * (clientX - box.left)) / box.width - 1, 1 - (2 * (clientY - box.top)) / box.height,
    );
    this.caster.setFromCamera(place, this.stage.camera);
    const [first] = this.caster.intersectObjects(this.targets(), false);
    return first ? { body: (first.object.userData as { body: number }).body, point: first.point } : null;
  }

  private click(event: PointerEvent): void {
    const hit = this.at(event.clientX, event.clientY);
    if (!this.measuring) {
      this.pick(hit);
      return;
    }
    if (!hit) return;
    if (this.points.length === 2) this.points.length = 0;
    this.points.push(hit.point);
    const [a, b] = [this.points[0]!, this.points[1] ?? this.points[0]!];
    this.line.geometry.setFromPoints([a, b]);
    this.line.visible = true;
    const length = a.distanceTo(b);
    this.label.textContent = this.points.length < 2 ? "click a second point" : metres(length);
    this.label.hidden = false;
    this.stage.invalidate();
  }

  private placeLabel(): void {
    if (this.label.hidden) return;
    const middle = this.points[0]!.clone();
    if (this.points[1]) middle.lerp(this.points[1], 0.5);
    middle.project(this.stage.camera);
    const { clientWidth, clientHeight } = this.stage.host;
    this.label.style.transform = `translate(${((middle.x + 1) / 2) * clientWidth}px, ${((1 - middle.y) / 2) * clientHeight}px)`;
  }
}

export function metres(length: number): string {
  return length < 1 ? `${(1000 * length).toFixed(1)} mm` : `${length.toFixed(3)} m`;
}
