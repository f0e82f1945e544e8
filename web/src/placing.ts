// Bodies that are put somewhere by dragging: along the ground, and with Shift about the vertical.

import * as THREE from "three";
import { type Model, setPose } from "./model";
import type { Hit } from "./picking";
import type { Pose, SceneMessage } from "./protocol";
import type { Stage } from "./stage";

const TURN_PER_PX = 0.01; // rad

export class Placing {
  private dragged: { body: number; plane: THREE.Plane; from: THREE.Vector3; x: number } | null = null;
  private readonly caster = new THREE.Raycaster();

  private scene!: SceneMessage;
  private model!: Model;
  private names: string[] = [];

  constructor(
    private readonly stage: Stage, private readonly at: (clientX: number, clientY: number) => Hit | null,
    private readonly send: (request: object) => void,
  ) {
    const canvas = stage.renderer.domElement;
    canvas.addEventListener("pointerdown", (event) => this.begin(event), { capture: true });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const kind of ["pointerup", "pointercancel"] as const) canvas.addEventListener(kind, () => this.end());
  }

  /** Put the named bodies of a model where they are, and let them be dragged. */
  offer(scene: SceneMessage, model: Model, poses: Record<string, Pose>): void {
    [this.scene, this.model, this.names] = [scene, model, Object.keys(poses)];
    const wanted = new THREE.Object3D();
    scene.bodies.forEach((body, i) => {
      const pose = poses[body.name];
      if (!pose) return;
      setPose(wanted, pose);
      wanted.updateMatrix();
      model.bodies[i]!.updateMatrix();
      this.moveAll(i, wanted.matrix.clone().multiply(model.bodies[i]!.matrix.clone().invert()));
    });
    this.stage.invalidate();
  }

  private begin(event: PointerEvent): void {
    const hit = event.button === 0 ? this.at(event.clientX, event.clientY) : null;
    const body = hit ? this.movable(hit.body) : -1;
    if (!hit || body < 0) return;
    const plane = new THREE.Plane().setFromNormalAndCoplanarPoint(new THREE.Vector3(0, 0, 1), hit.point);
    this.dragged = { body, plane, from: hit.point.clone(), x: event.clientX };
    this.stage.controls.enabled = false;
    this.stage.renderer.domElement.setPointerCapture(event.pointerId);
  }

  /** The body itself or the one that it is part of, where that can be dragged; else -1. */
  private movable(body: number): number {
    for (let at = body; at > 0; at = this.scene.bodies[at]!.parent) if (this.names.includes(this.scene.bodies[at]!.name)) return at;
    return -1;
  }

  private move(event: PointerEvent): void {
    if (!this.dragged) return;
    const motion = new THREE.Matrix4();
    const group = this.model.bodies[this.dragged.body]!;
    if (event.shiftKey) {
      const { x, y, z } = group.position;
      motion.makeTranslation(x, y, z).multiply(new THREE.Matrix4().makeRotationZ(TURN_PER_PX * (event.clientX - this.dragged.x)));
      motion.multiply(new THREE.Matrix4().makeTranslation(-x, -y, -z));
    }
    this.dragged.x = event.clientX;
    const box = this.stage.renderer.domElement.getBoundingClientRect();
    const place = new THREE.Vector2((2 * (event.clientX - box.left)) / box.width - 1, 1 - (2 * (event.clientY - box.top)) / box.height);
    this.caster.setFromCamera(place, this.stage.camera);
    const point = this.caster.ray.intersectPlane(this.dragged.plane, new THREE.Vector3());
    if (!point) return;
    if (!event.shiftKey) motion.makeTranslation(point.clone().sub(this.dragged.from));
    this.dragged.from.copy(point);
    this.moveAll(this.dragged.body, motion);
    this.stage.invalidate();
  }

  /** Move a body and those on it. */
  private moveAll(root: number, motion: THREE.Matrix4): void {
    const on = new Set([root]);
    this.scene.bodies.forEach((body, i) => {
      if (i > 0 && on.has(body.parent)) on.add(i);
      if (on.has(i)) this.model.bodies[i]!.applyMatrix4(motion);
    });
  }

  private end(): void {
    if (!this.dragged) return;
    const { position: p, quaternion: q } = this.model.bodies[this.dragged.body]!;
    const name = this.scene.bodies[this.dragged.body]!.name;
    this.dragged = null;
    this.stage.controls.enabled = true;
    this.send({ place: { body: name, pose: [p.x, p.y, p.z, q.w, q.x, q.y, q.z] } });
  }
}
