// Gaussians by Spark, which sorts and blends them with the meshes of the scene.

import { SparkRenderer, SplatMesh } from "@sparkjsdev/spark";
import * as THREE from "three";
import type { GaussiansMessage } from "./protocol";
import type { Stage } from "./stage";

let renderer: SparkRenderer | null = null;

/** How many Gaussians are in the image. */
export function drawnGaussians(): number {
  // Those outside the view are sorted out: what is sorted at all counts as a whole.
  return renderer?.activeSplats ? renderer.display.numSplats : 0;
}

export function gaussianMesh(message: GaussiansMessage, stage: Stage): THREE.Object3D {
  if (!renderer) {
    renderer = new SparkRenderer({ renderer: stage.renderer, onDirty: () => stage.invalidate() });
    stage.scene.add(renderer);
  }
  const { centres, scales, rotations, colours } = message.buffers as {
    centres: Float32Array; scales: Float32Array; rotations: Int16Array; colours: Uint8Array;
  };
  return new SplatMesh({
    maxSplats: message.count,
    onLoad: () => stage.invalidate(),
    constructSplats: (splats) => {
      const centre = new THREE.Vector3(), size = new THREE.Vector3(), turn = new THREE.Quaternion(), colour = new THREE.Color();
      for (let i = 0; i < message.count; i++) {
        centre.fromArray(centres, 3 * i);
        size.fromArray(scales, 3 * i);
        turn.set(rotations[4 * i + 1]!, rotations[4 * i + 2]!, rotations[4 * i + 3]!, rotations[4 * i]!).normalize();
        colour.setRGB(colours[4 * i]! / 255, colours[4 * i + 1]! / 255, colours[4 * i + 2]! / 255);
        splats.pushSplat(centre, size, turn, colours[4 * i + 3]! / 255, colour);
      }
    },
  });
}
