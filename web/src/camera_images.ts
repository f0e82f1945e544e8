// Cameras of a scene: frustums in the view, and their images at the time that is shown.

import type { Clock } from "./clock";
import { Frustum } from "./marks";
import type { Model } from "./model";
import type { Panel } from "./panel";
import type { ImageMessage, InfoMessage, SceneMessage } from "./protocol";
import type { Stage } from "./stage";

const REQUEST_MS = 150;
const KEPT_MS = 5000;
const KINDS = ["real", "rendered", "difference"];

export class CameraImages {
  private readonly frustums = new Map<string, Frustum>();
  private shown = false;
  private kind = "real";
  private next = 0;
  private last = 0;

  constructor(
    private readonly stage: Stage, private readonly clock: Clock, private readonly panel: Panel,
    private readonly ask: (request: object) => void,
  ) {}

  get names(): string[] {
    return [...this.frustums.keys()];
  }

  setScene(message: SceneMessage): void {
    this.frustums.clear();
    for (const camera of message.cameras) {
      const frustum = new Frustum(camera, 0.22 * message.radius, 0x868e96);
      this.frustums.set(camera.name, frustum);
      frustum.root.visible = false;
    }
    if (message.cameras.length) this.offer();
  }

  /** Which cameras have images, and whether the scene renders them too. */
  setInfo(message: InfoMessage): void {
    if (message.images.length && !this.frustums.size) this.offer();
    if (message.compare) this.panel.offerImageKinds(KINDS, (kind) => this.setKind(kind));
  }

  private offer(): void {
    this.panel.addToggle({ key: "v", label: "Cameras", shown: this.shown, act: (shown) => this.show(shown) });
  }

  private setKind(kind: string): void {
    this.kind = kind;
    this.next = 0;
    this.request();
  }

  /** Hang the frustums onto the bodies of a model. */
  attach(model: Model): void {
    for (const frustum of this.frustums.values()) model.bodies[frustum.camera.body]!.add(frustum.root);
  }

  /** Ask for the images of this time where cameras are shown, a few times a second. */
  request(): void {
    const now = performance.now();
    if (!this.shown || this.clock.live || now < this.next) return;
    this.next = now + REQUEST_MS;
    this.ask({ images: this.clock.t, show: this.kind });
    // The last request of a scrub may have come too early.
    window.clearTimeout(this.last);
    this.last = window.setTimeout(() => this.ask({ images: this.clock.t, show: this.kind }), 2 * REQUEST_MS);
  }

  receive(message: ImageMessage): void {
    const blob = new Blob([message.buffers["data"] as Uint8Array<ArrayBuffer>], { type: `image/${message.format}` });
    const address = URL.createObjectURL(blob);
    this.panel.setImage(message.camera, message.label, address);
    void createImageBitmap(blob).then((image) => {
      this.frustums.get(message.camera)?.show(image);
      this.stage.invalidate();
    });
    setTimeout(() => URL.revokeObjectURL(address), KEPT_MS);
  }

  private show(shown: boolean): void {
    for (const frustum of this.frustums.values()) frustum.root.visible = shown;
    this.shown = shown;
    this.request();
    this.stage.invalidate();
  }
}
