// Normals per corner: smooth over gentle bends, sharp at edges.

/** Positions and normals of the corners of triangles; a vertex is smoothed over faces within `angle` [rad]. */
export function creased(
  vertices: Float32Array, faces: Uint32Array, angle = 0.6,
): { positions: Float32Array; normals: Float32Array } {
  const count = faces.length / 3;
  const faceNormals = new Float32Array(faces.length);
  const weighted = new Float32Array(faces.length);
  for (let f = 0; f < count; f++) {
    const [a, b, c] = [3 * faces[3 * f]!, 3 * faces[3 * f + 1]!, 3 * faces[3 * f + 2]!];
    const ux = vertices[b]! - vertices[a]!, uy = vertices[b + 1]! - vertices[a + 1]!, uz = vertices[b + 2]! - vertices[a + 2]!;
    const wx = vertices[c]! - vertices[a]!, wy = vertices[c + 1]! - vertices[a + 1]!, wz = vertices[c + 2]! - vertices[a + 2]!;
    const n = [uy * wz - uz * wy, uz * wx - ux * wz, ux * wy - uy * wx];
    const length = Math.hypot(n[0]!, n[1]!, n[2]!) || 1;
    for (let k = 0; k < 3; k++) {
      weighted[3 * f + k] = n[k]!;
      faceNormals[3 * f + k] = n[k]! / length;
    }
  }
  // Faces of each vertex, as one list with the places where each vertex begins.
  const starts = new Uint32Array(vertices.length / 3 + 1);
  for (const v of faces) starts[v + 1]!++;
  for (let v = 1; v < starts.length; v++) starts[v]! += starts[v - 1]!;
  const next = starts.slice(), around = new Uint32Array(faces.length);
  for (let i = 0; i < faces.length; i++) around[next[faces[i]!]!++] = Math.floor(i / 3);

  const limit = Math.cos(angle);
  const positions = new Float32Array(3 * faces.length), normals = new Float32Array(3 * faces.length);
  for (let i = 0; i < faces.length; i++) {
    const v = faces[i]!, f = 3 * Math.floor(i / 3);
    let x = 0, y = 0, z = 0;
    for (let k = starts[v]!; k < starts[v + 1]!; k++) {
      const g = 3 * around[k]!;
      const dot = faceNormals[f]! * faceNormals[g]! + faceNormals[f + 1]! * faceNormals[g + 1]!
        + faceNormals[f + 2]! * faceNormals[g + 2]!;
      if (dot < limit) continue;
      x += weighted[g]!; y += weighted[g + 1]!; z += weighted[g + 2]!;
    }
    const length = Math.hypot(x, y, z) || 1;
    positions.set(vertices.subarray(3 * v, 3 * v + 3), 3 * i);
    normals.set([x / length, y / length, z / length], 3 * i);
  }
  return { positions, normals };
}
