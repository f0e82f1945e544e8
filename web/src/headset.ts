// WebXR: walk around the scene at its real size, and grab end effectors with the controllers.

import * as THREE from "three";
import type { Grabbing } from "./grab";
import type { Stage } from "./stage";

const REACH = 0.2; // m from a hand within which an end effector is grabbed
const TABLE = 0.72; // m, the height of a table: small scenes are put there
const SMALL = 0.9; // m, the radius of a scene that fits onto a table
const NEAR = 0.75; // m, how close a viewer begins

export type HeadsetMode = "immersive-ar" | "immersive-vr";

export class Headset {
  private session: XRSession | null = null;
  private readonly rig = new THREE.Group();
  private readonly hands: THREE.Object3D[];
  private holder: THREE.Object3D | null = null;

  constructor(private readonly stage: Stage, private readonly grabbing: () => Grabbing | null) {
    stage.scene.add(this.rig);
    this.hands = [0, 1].map((index) => this.controller(index));
    stage.onFrame(() => this.follow());
  }

  get present(): boolean {
    return this.session !== null;
  }

  /** The kind of session that this browser offers; pass-through first. */
  static async offered(): Promise<HeadsetMode | null> {
    for (const mode of ["immersive-ar", "immersive-vr"] as const) {
      if (await navigator.xr?.isSessionSupported(mode).catch(() => false)) return mode;
    }
    return null;
  }

  /** Enter, from a click; `left` is called once the session has ended. */
  async enter(mode: HeadsetMode, left: () => void): Promise<void> {
    const session = await navigator.xr!.requestSession(mode, { requiredFeatures: ["local-floor"], optionalFeatures: ["hand-tracking"] });
    const { renderer } = this.stage, through = mode === "immersive-ar";
    renderer.xr.enabled = true;
    renderer.xr.setReferenceSpaceType("local-floor");
    session.addEventListener("end", () => {
      this.session = this.holder = null;
      if (this.grabbing()?.holding) this.grabbing()!.release();
      renderer.xr.enabled = false;
      this.rig.clear();
      this.stage.leaveHeadset();
      left();
    });
    await renderer.xr.setSession(session);
    this.session = session;
    this.stage.enterHeadset(through);
    this.place();
    this.rig.add(this.stage.camera);
    this.rig.add(...this.hands);
  }

  leave(): void {
    void this.session?.end();
  }

  /** Stand before the scene, which is at table height where it is small. */
  private place(): void {
    const { centre, radius, ground } = this.stage.framed;
    const towards = new THREE.Vector3(-1.25, 1.55, 0).normalize();
    const away = Math.max(NEAR, 1.15 * radius);
    this.rig.position.set(centre.x - away * towards.x, centre.y - away * towards.y, ground - (radius < SMALL ? TABLE : 0));
    // Up is y in a headset and z here; forward is -z there.
    this.rig.rotation.set(Math.PI / 2, 0, 0);
    this.rig.rotateOnWorldAxis(new THREE.Vector3(0, 0, 1), Math.atan2(towards.y, towards.x) - Math.PI / 2);
    this.rig.updateMatrixWorld(true);
  }

  private controller(index: number): THREE.Object3D {
    const hand = this.stage.renderer.xr.getController(index);
    const ball = new THREE.Mesh(new THREE.SphereGeometry(0.012, 16, 12), new THREE.MeshBasicMaterial({ color: 0x4dabf7 }));
    hand.add(ball);
    const begin = () => {
      hand.updateWorldMatrix(true, false);
      if (!this.holder && this.grabbing()?.take(hand.matrixWorld, REACH, true)) this.holder = hand;
    };
    const end = () => {
      if (this.holder !== hand) return;
      this.holder = null;
      this.grabbing()?.release();
    };
    for (const kind of ["selectstart", "squeezestart"] as const) hand.addEventListener(kind, begin);
    for (const kind of ["selectend", "squeezeend", "disconnected"] as const) hand.addEventListener(kind, end);
    return hand;
  }

  private follow(): boolean {
    if (this.session && this.holder) {
      this.holder.updateWorldMatrix(true, false);
      this.grabbing()?.move(this.holder.matrixWorld);
    }
    return this.present;
  }
}
