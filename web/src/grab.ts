// End effectors that can be grabbed: with a pointer in the view, or with the controller of a headset.

import * as THREE from "three";
import { setPose } from "./model";
import type { Hit } from "./picking";
import type { SceneMessage } from "./protocol";
import type { Stage } from "./stage";

const SEND_MS = 40;
const COLOUR = 0xf08c00;
const ARRIVED_M = 0.01;
const SENT_MS = 15_000; // a place that cannot be reached is given up

interface Held {
  tip: number;
  /** Where the hand and the end effector were when it was grabbed. */
  hand: THREE.Matrix4;
  start: THREE.Matrix4;
  /** Whether the end effector turns with the hand. */
  turns: boolean;
}

export class Grabbing {
  private readonly handles: THREE.Mesh[] = [];
  private readonly target = new THREE.Mesh(
    new THREE.SphereGeometry(1, 20, 14), new THREE.MeshBasicMaterial({ color: COLOUR, transparent: true, opacity: 0.5, depthTest: false }),
  );
  private readonly line = new THREE.Line(
    new THREE.BufferGeometry(), new THREE.LineBasicMaterial({ color: COLOUR, depthTest: false, transparent: true }),
  );
  private readonly caster = new THREE.Raycaster();
  private held: Held | null = null;
  private wanted: object | null = null;
  private timer = 0;
  /** When the end effector was sent to a place that was clicked [ms]; 0 where a hand holds it. */
  private sentAt = 0;

  constructor(
    private readonly stage: Stage, private readonly scene: SceneMessage,
    private readonly at: (clientX: number, clientY: number) => Hit | null, private readonly send: (request: object) => void,
  ) {
    this.target.scale.setScalar(0.018 * scene.radius);
    this.target.renderOrder = this.line.renderOrder = 7;
    this.target.visible = this.line.visible = false;
    this.line.frustumCulled = false;
    stage.scene.add(this.target, this.line);
    this.pointer();
    stage.onFrame(() => (this.stretch(), false));
  }

  /** Hang a ring onto each end effector of a model. */
  attach(bodies: THREE.Group[]): void {
    for (const handle of this.handles) handle.removeFromParent();
    this.handles.length = 0;
    for (const site of this.scene.sites) {
      const ring = new THREE.TorusGeometry(0.05 * this.scene.radius, 0.009 * this.scene.radius, 12, 40);
      const material = new THREE.MeshBasicMaterial({ color: COLOUR, transparent: true, opacity: 0.85 });
      const handle = new THREE.Mesh(ring, material);
      setPose(handle, site.pose);
      bodies[site.body]!.add(handle);
      this.handles.push(handle);
    }
    this.stage.invalidate();
  }

  get holding(): boolean {
    return this.held !== null;
  }

  /** Grab the end effector that is nearest to a hand, at most `reach` away [m]; whether there is one. */
  take(hand: THREE.Matrix4, reach: number, turns: boolean): boolean {
    const at = new THREE.Vector3().setFromMatrixPosition(hand);
    let best = -1, least = reach;
    this.handles.forEach((handle, tip) => {
      const distance = handle.getWorldPosition(new THREE.Vector3()).distanceTo(at);
      if (distance <= least) [best, least] = [tip, distance];
    });
    if (best < 0) return false;
    this.handles[best]!.updateWorldMatrix(true, false);
    this.held = { tip: best, hand: hand.clone(), start: this.handles[best]!.matrixWorld.clone(), turns };
    this.move(hand);
    this.timer = window.setInterval(() => this.wanted && this.send({ grab: this.wanted }), SEND_MS);
    return true;
  }

  /** Send the end effector that is nearest to a place there; it is released once it arrives, or at the next click. */
  sendTo(place: THREE.Vector3): void {
    if (this.held) this.release();
    if (!this.take(new THREE.Matrix4().setPosition(place), Infinity, false)) return;
    const from = new THREE.Vector3().setFromMatrixPosition(this.held!.start);
    this.held!.hand.setPosition(from);
    this.move(new THREE.Matrix4().setPosition(place));
    this.sentAt = performance.now();
  }

  /** The end effector shall move as the hand did since it was grabbed. */
  move(hand: THREE.Matrix4): void {
    if (!this.held) return;
    const { tip, start, turns } = this.held;
    const from = new THREE.Vector3(), to = new THREE.Vector3(), unit = new THREE.Vector3();
    const turnFrom = new THREE.Quaternion(), turnTo = new THREE.Quaternion(), own = new THREE.Quaternion();
    this.held.hand.decompose(from, turnFrom, unit);
    hand.decompose(to, turnTo, unit);
    const place = new THREE.Vector3();
    start.decompose(place, own, unit);
    place.add(to).sub(from);
    own.premultiply(turnTo.multiply(turnFrom.invert()));
    this.wanted = { tip, place: place.toArray(), ...(turns ? { turn: [own.w, own.x, own.y, own.z] } : {}) };
    this.target.position.copy(place);
    this.target.visible = this.line.visible = true;
    this.stage.invalidate();
  }

  /** The line from the end effector to where it shall be. */
  private stretch(): void {
    if (!this.held) return;
    const from = this.handles[this.held.tip]!.getWorldPosition(new THREE.Vector3());
    this.line.geometry.setFromPoints([from, this.target.position]);
    const passed = performance.now() - this.sentAt;
    if (this.sentAt && (from.distanceTo(this.target.position) < ARRIVED_M || passed > SENT_MS)) this.release();
  }

  release(): void {
    window.clearInterval(this.timer);
    this.held = this.wanted = null;
    this.sentAt = 0;
    this.target.visible = this.line.visible = false;
    this.send({ release: true });
    this.stage.invalidate();
  }

  private pointer(): void {
    const canvas = this.stage.renderer.domElement, plane = new THREE.Plane(), point = new THREE.Vector3();
    const aim = (event: PointerEvent) => {
      const box = canvas.getBoundingClientRect();
      const place = new THREE.Vector2((2 * (event.clientX - box.left)) / box.width - 1, 1 - (2 * (event.clientY - box.top)) / box.height);
      this.caster.setFromCamera(place, this.stage.camera);
    };
    const hand = () => new THREE.Matrix4().setPosition(point);
    canvas.addEventListener("pointerdown", (event) => {
      if (this.sentAt) this.release();
      aim(event);
      const [hit] = this.caster.intersectObjects(this.handles, false);
      if (!hit || event.button !== 0) return;
      // Motion stays in the plane through the ring that faces the camera.
      plane.setFromNormalAndCoplanarPoint(this.stage.camera.getWorldDirection(new THREE.Vector3()), hit.point);
      point.copy(hit.point);
      this.take(hand(), Infinity, false);
      this.stage.controls.enabled = false;
      canvas.setPointerCapture(event.pointerId);
    }, { capture: true });
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.at(event.clientX, event.clientY);
      if (hit) this.sendTo(hit.point);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.held || this.sentAt || !this.stage.controlled) return;
      aim(event);
      if (this.caster.ray.intersectPlane(plane, point)) this.move(hand());
    });
    for (const end of ["pointerup", "pointercancel"] as const) {
      canvas.addEventListener(end, () => {
        if (!this.held || this.sentAt || !this.stage.controlled) return;
        this.stage.controls.enabled = true;
        this.release();
      });
    }
  }
}
