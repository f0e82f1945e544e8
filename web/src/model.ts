// The bodies of a scene as three.js objects; a track poses one model, a ghost is a second one in one colour.

import * as THREE from "three";
import { creased } from "./normals";
import type { GeomData, Pose, SceneMessage } from "./protocol";

export type Layer = "visual" | "collision";

/** Geometries of a scene, shared by all models of it. */
export class Shapes {
  private readonly meshes: THREE.BufferGeometry[] = [];
  private readonly made = new Map<string, THREE.BufferGeometry>();

  constructor(readonly scene: SceneMessage) {
    scene.meshes.forEach((mesh, i) => {
      const packed = scene.buffers[`v${i}`] as Uint16Array, faces = scene.buffers[`f${i}`]!;
      const vertices = new Float32Array(packed.length);
      for (let k = 0; k < packed.length; k++) {
        vertices[k] = mesh.low[k % 3]! + (mesh.size[k % 3]! * packed[k]!) / 65535;
      }
      const corners = creased(vertices, Uint32Array.from(faces));
      const geometry = new THREE.BufferGeometry();
      geometry.setAttribute("position", new THREE.BufferAttribute(corners.positions, 3));
      geometry.setAttribute("normal", new THREE.BufferAttribute(corners.normals, 3));
      this.meshes.push(geometry);
    });
  }

  of(geom: GeomData): THREE.BufferGeometry {
    if (geom.type === "mesh") return this.meshes[geom.mesh!]!;
    const key = `${geom.type} ${geom.size.join(" ")}`;
    let shape = this.made.get(key);
    if (!shape) this.made.set(key, (shape = primitive(geom)));
    return shape;
  }
}

export interface ModelOptions {
  ghost?: THREE.ColorRepresentation;
}

export class Model {
  readonly root = new THREE.Group();
  readonly bodies: THREE.Group[] = [];
  private readonly layers: Record<Layer, THREE.Mesh[]> = { visual: [], collision: [] };
  private readonly tints = new Map<THREE.Mesh, THREE.Color>();
  private readonly ghost: boolean;

  constructor(shapes: Shapes, options: ModelOptions = {}) {
    this.ghost = options.ghost !== undefined;
    for (const body of shapes.scene.bodies) {
      const group = new THREE.Group();
      group.name = body.name;
      this.bodies.push(group);
      this.root.add(group);
    }
    const moving = movingBodies(shapes.scene);
    for (const geom of shapes.scene.geoms) {
      const layers: Layer[] = geom.layer === "both" ? ["visual", "collision"] : [geom.layer];
      for (const layer of layers) {
        if (this.ghost && (layer === "collision" || !moving[geom.body])) continue;
        this.add(shapes, geom, layer, options);
      }
    }
    this.show("collision", false);
    const poses = shapes.scene.buffers["poses"] as Float32Array;
    this.bodies.forEach((_, i) => this.place(i, poses, 7 * i));
  }

  private add(shapes: Shapes, geom: GeomData, layer: Layer, options: ModelOptions): void {
    const material = layer === "collision" ? collisionMaterial() : visualMaterial(geom.rgba, options.ghost);
    const mesh = new THREE.Mesh(shapes.of(geom), material);
    setPose(mesh, geom.pose);
    mesh.userData = { body: geom.body, geom: geom.name };
    if (layer === "visual" && !this.ghost) {
      mesh.castShadow = geom.type !== "plane";
      mesh.receiveShadow = true;
    }
    if (layer === "collision") mesh.renderOrder = 2;
    this.bodies[geom.body]!.add(mesh);
    this.layers[layer].push(mesh);
  }

  /** Put a body at a pose: x y z, quaternion w x y z. */
  place(body: number, pose: ArrayLike<number>, at = 0): void {
    const group = this.bodies[body]!;
    group.position.set(pose[at]!, pose[at + 1]!, pose[at + 2]!);
    group.quaternion.set(pose[at + 4]!, pose[at + 5]!, pose[at + 6]!, pose[at + 3]!);
  }

  show(layer: Layer, shown: boolean): void {
    for (const mesh of this.layers[layer]) mesh.visible = shown;
  }

  get pickable(): THREE.Object3D[] {
    return [...this.layers.visual, ...this.layers.collision].filter((mesh) => mesh.visible);
  }

  /** Blend the colour of a body towards another one; 0 gives its own back. */
  tint(body: number, colour: THREE.Color, share: number): void {
    for (const mesh of this.layers.visual) {
      if ((mesh.userData as { body: number }).body !== body) continue;
      const material = mesh.material as THREE.MeshStandardMaterial;
      let own = this.tints.get(mesh);
      if (!own) this.tints.set(mesh, (own = material.color.clone()));
      material.color.copy(own).lerp(colour, share);
    }
  }

  /** Let a body glow, or none. */
  highlight(body: number | null, colour: THREE.Color): void {
    for (const mesh of this.layers.visual) {
      const chosen = (mesh.userData as { body: number }).body === body;
      const material = mesh.material as THREE.MeshStandardMaterial;
      material.emissive.copy(colour);
      material.emissiveIntensity = chosen ? 0.45 : 0;
    }
  }
}

/** Which bodies can move: those with a joint, and those on them. */
function movingBodies(scene: SceneMessage): boolean[] {
  const moving: boolean[] = [];
  for (const body of scene.bodies) moving.push(body.joints.length > 0 || (moving[body.parent] ?? false));
  return moving;
}

export function setPose(object: THREE.Object3D, pose: Pose): void {
  object.position.set(pose[0], pose[1], pose[2]);
  object.quaternion.set(pose[4], pose[5], pose[6], pose[3]);
}

function visualMaterial(rgba: GeomData["rgba"], ghost?: THREE.ColorRepresentation): THREE.MeshStandardMaterial {
  if (ghost !== undefined) {
    return new THREE.MeshStandardMaterial({
      color: ghost, transparent: true, opacity: 0.42, roughness: 0.6,
      // Where it coincides with the solid model it is hidden, rather than flickering through.
      polygonOffset: true, polygonOffsetFactor: 2, polygonOffsetUnits: 8,
    });
  }
  const colour = new THREE.Color().setRGB(rgba[0], rgba[1], rgba[2], THREE.SRGBColorSpace);
  return new THREE.MeshStandardMaterial({
    color: colour, roughness: 0.58, metalness: 0.04, transparent: rgba[3] < 1, opacity: rgba[3],
  });
}

function collisionMaterial(): THREE.MeshStandardMaterial {
  return new THREE.MeshStandardMaterial({
    color: 0x12b886, transparent: true, opacity: 0.35, roughness: 0.9, depthWrite: false,
    polygonOffset: true, polygonOffsetFactor: -1,
  });
}

function primitive(geom: GeomData): THREE.BufferGeometry {
  const [a, b, c] = geom.size;
  switch (geom.type) {
    case "box":
      return new THREE.BoxGeometry(2 * a, 2 * b, 2 * c);
    case "sphere":
      return new THREE.SphereGeometry(a, 32, 20);
    case "ellipsoid":
      return new THREE.SphereGeometry(1, 32, 20).scale(a, b, c);
    case "capsule":
      return new THREE.CapsuleGeometry(a, 2 * b, 12, 32).rotateX(Math.PI / 2);
    case "cylinder":
      return new THREE.CylinderGeometry(a, a, 2 * b, 40).rotateX(Math.PI / 2);
    default:
      return new THREE.PlaneGeometry(2 * a, 2 * b);
  }
}
