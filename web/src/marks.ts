// What is shown beside bodies: frames of axes, trails of end effectors, cameras as frustums, contacts with forces.

import * as THREE from "three";
import { setPose } from "./model";
import type { CameraData, SceneMessage } from "./protocol";
import type { Track } from "./track";

const TRAIL_S = 4;

/** Axes of every body, red x, green y, blue z. */
export function frameAxes(size: number): THREE.LineSegments {
  const ends = new Float32Array(18), colours = new Float32Array(18);
  for (let axis = 0; axis < 3; axis++) {
    ends[6 * axis + 3 + axis] = size;
    for (const end of [0, 1]) colours.set([[0.88, 0.2, 0.22], [0.18, 0.65, 0.3], [0.2, 0.42, 0.9]][axis]!, 6 * axis + 3 * end);
  }
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", new THREE.BufferAttribute(ends, 3));
  geometry.setAttribute("color", new THREE.BufferAttribute(colours, 3));
  const made = new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ vertexColors: true, depthTest: false }));
  made.renderOrder = 5;
  return made;
}

/** The way of a point of a body over the last seconds. */
export class Trail {
  readonly line: THREE.Line;
  private readonly points: THREE.BufferAttribute;
  private filled = 0;
  private readonly pose = new Float32Array(7);

  constructor(private readonly track: Track, private readonly site: SceneMessage["sites"][number], colour: THREE.ColorRepresentation) {
    this.points = new THREE.BufferAttribute(new Float32Array(3 * Math.max(track.times.length, 2)), 3);
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", this.points);
    this.line = new THREE.Line(geometry, new THREE.LineBasicMaterial({ color: colour, transparent: true, opacity: 0.9 }));
    this.line.frustumCulled = false;
  }

  update(t: number): void {
    if (this.filled > this.track.count) this.filled = 0; // a new episode
    const point = new THREE.Vector3(), turn = new THREE.Quaternion();
    for (; this.filled < this.track.count; this.filled++) {
      this.track.pose(this.site.body, this.track.times[this.filled]!, this.pose);
      const [x, y, z, w, a, b, c] = this.pose as unknown as number[];
      point.set(this.site.pose[0], this.site.pose[1], this.site.pose[2]).applyQuaternion(turn.set(a!, b!, c!, w!));
      this.points.setXYZ(this.filled, point.x + x!, point.y + y!, point.z + z!);
      this.points.needsUpdate = true;
    }
    const last = this.track.row(t), first = this.track.row(t - TRAIL_S);
    this.line.geometry.setDrawRange(first, Math.max(0, last - first + 1));
  }
}

/** A camera as the outline of what it sees, with its newest image on the far plane. */
export class Frustum {
  readonly root = new THREE.Group();
  private readonly screen: THREE.Mesh<THREE.PlaneGeometry, THREE.MeshBasicMaterial>;

  constructor(readonly camera: CameraData, depth: number, colour: THREE.ColorRepresentation) {
    const wide = (depth * camera.width) / camera.focal[0], high = (depth * camera.height) / camera.focal[1];
    const left = (-depth * camera.centre[0]) / camera.focal[0], top = (-depth * camera.centre[1]) / camera.focal[1];
    const corners = [[left, top], [left + wide, top], [left + wide, top + high], [left, top + high]] as [number, number][];
    const points: number[] = [];
    corners.forEach((corner, i) => {
      const next = corners[(i + 1) % 4]!;
      points.push(0, 0, 0, ...corner, depth, ...corner, depth, ...next, depth);
    });
    // A small tick says where the image is up.
    points.push(left + 0.4 * wide, top, depth, left + 0.5 * wide, top - 0.12 * high, depth);
    points.push(left + 0.5 * wide, top - 0.12 * high, depth, left + 0.6 * wide, top, depth);
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.Float32BufferAttribute(points, 3));
    this.root.add(new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ color: colour })));
    const material = new THREE.MeshBasicMaterial({ side: THREE.DoubleSide, toneMapped: false });
    this.screen = new THREE.Mesh(new THREE.PlaneGeometry(wide, high), material);
    this.screen.position.set(left + wide / 2, top + high / 2, depth);
    this.screen.rotation.x = Math.PI; // image rows go down, as y of the camera does
    this.screen.visible = false;
    this.root.add(this.screen);
    setPose(this.root, camera.pose);
  }

  show(image: ImageBitmap | HTMLImageElement): void {
    this.screen.material.map?.dispose();
    const texture = new THREE.Texture(image);
    texture.colorSpace = THREE.SRGBColorSpace;
    texture.needsUpdate = true;
    this.screen.material.map = texture;
    this.screen.material.needsUpdate = true;
    this.screen.visible = true;
  }
}

/** Contact points of a row as dots, forces as lines. */
export class Contacts {
  readonly root = new THREE.Group();
  private readonly dots: THREE.InstancedMesh;
  private readonly lines: THREE.LineSegments;
  private readonly ends: THREE.BufferAttribute;
  private static readonly most = 200;

  constructor(private readonly radius: number) {
    const material = new THREE.MeshBasicMaterial({ color: 0xf08c00, depthTest: false });
    this.dots = new THREE.InstancedMesh(new THREE.SphereGeometry(0.008 * radius, 12, 8), material, Contacts.most);
    this.ends = new THREE.BufferAttribute(new Float32Array(6 * Contacts.most), 3);
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", this.ends);
    this.lines = new THREE.LineSegments(geometry, new THREE.LineBasicMaterial({ color: 0xf08c00, depthTest: false }));
    for (const part of [this.dots, this.lines]) {
      part.frustumCulled = false;
      part.renderOrder = 6;
      this.root.add(part);
    }
    this.root.visible = false; // no shader is compiled for contacts that are not there
  }

  update(track: Track, row: number): void {
    const from = track.contactStarts[row] ?? 0, to = track.contactStarts[row + 1] ?? from;
    const count = Math.min(Contacts.most, to - from), place = new THREE.Matrix4();
    for (let i = 0; i < count; i++) {
      const c = track.contacts.subarray(6 * (from + i), 6 * (from + i) + 6);
      const size = Math.hypot(c[3]!, c[4]!, c[5]!);
      // Forces span magnitudes: the length goes by the logarithm of newtons.
      const scale = size > 0 ? (0.12 * this.radius * Math.log10(1 + size)) / size : 0;
      this.dots.setMatrixAt(i, place.makeTranslation(c[0]!, c[1]!, c[2]!));
      this.ends.setXYZ(2 * i, c[0]!, c[1]!, c[2]!);
      this.ends.setXYZ(2 * i + 1, c[0]! + scale * c[3]!, c[1]! + scale * c[4]!, c[2]! + scale * c[5]!);
    }
    this.root.visible = count > 0;
    this.dots.count = count;
    this.dots.instanceMatrix.needsUpdate = this.ends.needsUpdate = true;
    this.lines.geometry.setDrawRange(0, 2 * count);
  }
}
