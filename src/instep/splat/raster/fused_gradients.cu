// Gradients of a loss on the images of fused_blend.cu: by Gaussians, by the poses of bodies and by those of cameras.
//
// The blend is repeated front to back, as in gradients.py: with s the gradient by a record's weight at a pixel and R the sum
// of weight times s over all records behind, the gradient by its alpha is T s - R / (1 - alpha). gradient_lists sums the
// moments of every record over its pixels; pull_gradients takes them through the projection, as gradient_projection.py.

#define MOMENTS 10 // of a record: by log alpha 1, x, y, xx, xy, yy; by red, green, blue and depth

struct Slopes {
    float red, green, blue, deep, cover; // gradients of the loss by the sums of a pixel
    float behind;                        // R
};

// The gradients of a pixel, from those by its colour, alpha and mean depth.
__device__ __forceinline__ Slopes slopes_of(const Arguments &a, int image, int x, int y) {
    Slopes s = {0, 0, 0, 0, 0, 0};
    if (x >= a.width || y >= a.height) return s;
    image += a.first;
    long long at = pixel_index(a, image, x, y);
    float cover = a.alpha[at], own[3] = {a.colour[3 * at], a.colour[3 * at + 1], a.colour[3 * at + 2]};
    s.red = a.by_colour[3 * at], s.green = a.by_colour[3 * at + 1], s.blue = a.by_colour[3 * at + 2];
    if (a.by_alpha) s.cover = a.by_alpha[at];
    if (a.by_depth && cover > 0) {
        s.deep = a.by_depth[at] / cover;
        s.cover -= s.deep * a.depth[at];
        s.behind = s.deep * a.depth[at] * cover;
    }
    if (a.behind) {
        const float *behind = a.behind + 3 * pixel_index(a, image % a.cameras, x, y);
        s.cover -= s.red * behind[0] + s.green * behind[1] + s.blue * behind[2];
        for (int k = 0; k < 3; k++) own[k] -= (1 - cover) * behind[k];
    }
    s.behind += s.red * own[0] + s.green * own[1] + s.blue * own[2] + s.cover * cover;
    return s;
}

// The gradient by the logarithm of a record's alpha at a pixel; moves R behind the record.
__device__ __forceinline__ float by_log_alpha(Slopes &s, const Pixel &p, float weight, float alpha, float gradient) {
    s.behind = p.light > 0 ? s.behind - weight * gradient : 0.0f;
    return alpha < MAX_ALPHA ? weight * gradient - s.behind * alpha / (1 - alpha) : 0.0f;
}

// Adds the moments of a record over the four lanes of a tile to those in memory: lanes exchange halves of what they hold.
__device__ __forceinline__ void add_moments(float (&m)[MOMENTS], float *to) {
    int part = threadIdx.x % GROUP;
    float five[6], three[3];
#pragma unroll
    for (int k = 0; k < 5; k++) {
        float sent = part & 2 ? m[k] : m[k + 5], kept = part & 2 ? m[k + 5] : m[k];
        five[k] = kept + __shfl_xor_sync(FULL, sent, 2);
    }
    five[5] = 0;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        float sent = part & 1 ? five[k] : five[k + 3], kept = part & 1 ? five[k + 3] : five[k];
        three[k] = kept + __shfl_xor_sync(FULL, sent, 1);
    }
    int first = (part & 2 ? 5 : 0) + (part & 1 ? 3 : 0);
#pragma unroll
    for (int k = 0; k < 3; k++)
        if (three[k] != 0) atomicAdd(to + first + k, three[k]);
}

// Sums the moments of every record.
struct Differentiator {
    Pixel p[ROWS];
    Slopes s[ROWS];

    __device__ __forceinline__ void begin(const Arguments &a, const Job &job) {
        full_lights(a, job, p);
#pragma unroll
        for (int k = 0; k < ROWS; k++) s[k] = slopes_of(a, job.image, job.x, job.y + k);
    }

    __device__ __forceinline__ void add(const Record &record, float x, float y, float *to) {
        float red, green, blue, log_opacity, alpha[ROWS], w[ROWS], m[MOMENTS] = {};
        unpack_halves(record.rest.z, red, green), unpack_halves(record.rest.w, blue, log_opacity);
        pass_record(record, x, y, p, alpha, w);
        float z = record.rest.y, dx = x - record.place.x, dy = y - record.place.y;
        bool some = false;
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            float g = s[k].red * red + s[k].green * green + s[k].blue * blue + s[k].deep * z + s[k].cover;
            float power = by_log_alpha(s[k], p[k], w[k], alpha[k], g), low = dy + k;
            some |= w[k] != 0 || power != 0;
            m[0] += power, m[2] += power * low, m[5] += power * low * low;
            m[6] += w[k] * s[k].red, m[7] += w[k] * s[k].green, m[8] += w[k] * s[k].blue, m[9] += w[k] * s[k].deep;
        }
        if (!__any_sync(FULL, some)) return;
        m[1] = m[0] * dx, m[3] = m[1] * dx, m[4] = m[2] * dx;
        add_moments(m, to);
    }

    // As Blender's: records are read before they are needed.
    __device__ __forceinline__ void walk(const Arguments &a, const Job &job, const Rank *list, int length) {
        float *moments = a.moments + (long long)job.image * a.stride * MOMENTS;
        const Four *fours = (const Four *)list;
        int last = length / 4 - 1;
        if (last < 0) return;
        float x = job.x + 0.5f, y = job.y + 0.5f;
        Four now = fours[0], soon = fours[min(1, last)];
        Record first = record_at(job, now.a), second = record_at(job, now.b);
        for (int i = 0; i <= last; i++) {
            Four here = now;
            Record third = record_at(job, here.c);
            add(first, x, y, moments + (long long)here.a * MOMENTS);
            Record fourth = record_at(job, here.d);
            add(second, x, y, moments + (long long)here.b * MOMENTS);
            now = soon, soon = fours[min(i + 2, last)];
            first = record_at(job, now.a);
            add(third, x, y, moments + (long long)here.c * MOMENTS);
            second = record_at(job, now.b);
            add(fourth, x, y, moments + (long long)here.d * MOMENTS);
            if (finished(p)) break;
        }
    }

    __device__ __forceinline__ bool done() const {
        return finished(p);
    }

    __device__ __forceinline__ void end(const Arguments &a, const Job &job) {}
};

extern "C" __global__ void __launch_bounds__(WALK_THREADS, 3) gradient_lists(Arguments a) {
    walk_lists<Differentiator>(a);
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS) gradient_queue(Arguments a) {
    extern __shared__ float4 shared[];
    walk_queue<Differentiator>(a, shared);
}

// ------------------------------------------------------------------------------------------------ the projection

// How the lens's derivative changes: xx by n, xx by m (= xy by n), xy by m (= yy by n), yy by m.
__device__ __forceinline__ float4 lens_hessian(float n, float m, const float *view) {
#if LENS
    float k1 = view[12], k2 = view[13], p1 = view[14], p2 = view[15], k3 = view[16], r2 = n * n + m * m;
    float grow = 2 * (k1 + r2 * (2 * k2 + r2 * 3 * k3)), more = 4 * (2 * k2 + 6 * k3 * r2);
    return make_float4(3 * grow * n + more * n * n * n + 6 * p2, grow * m + more * n * n * m + 2 * p1,
                       grow * n + more * n * m * m + 2 * p2, 3 * grow * m + more * m * m * m + 6 * p1);
#else
    return make_float4(0, 0, 0, 0);
#endif
}

// By a Gaussian's place in the camera's frame, through its centre (u, v) and through the rows (j, k) of the derivative.
__device__ float3 by_position(float3 at, const float *view, float u, float v, float3 j, float3 k) {
    float nx = at.x / at.z, ny = at.y / at.z;
    float n = fminf(fmaxf(nx, view[6]), view[7]), m = fminf(fmaxf(ny, view[8]), view[9]);
    Bent b = through_lens(n, m, view);
    float fx = view[0] / at.z, fy = view[1] / at.z;
    float a0 = j.x * fx, a1 = j.y * fx, a2 = j.z * fx, b0 = k.x * fy, b1 = k.y * fy, b2 = k.z * fy;
    float xx = a0 - a2 * n, xy = a1 - a2 * m + b0 - b2 * n, yy = b1 - b2 * m;
    float4 h = lens_hessian(n, m, view);
    float by_n = -(a2 * b.xx + b2 * b.xy) + xx * h.x + xy * h.y + yy * h.z;
    float by_m = -(a2 * b.xy + b2 * b.yy) + xx * h.y + xy * h.z + yy * h.w;
    by_n = n == nx ? by_n : 0, by_m = m == ny ? by_m : 0;
    float shrink = xx * b.xx + xy * b.xy + yy * b.yy;
    Bent c = through_lens(nx, ny, view);
    by_n += view[0] * u * c.xx + view[1] * v * c.xy, by_m += view[0] * u * c.xy + view[1] * v * c.yy;
    return make_float3(by_n / at.z, by_m / at.z, -(shrink + by_n * nx + by_m * ny) / at.z);
}

__device__ __forceinline__ float3 times_covariance(float4 s, float4 t, float3 v) {
    return make_float3(s.x * v.x + s.y * v.y + s.z * v.z, s.y * v.x + s.w * v.y + t.x * v.z,
                       s.z * v.x + t.x * v.y + t.y * v.z);
}

__device__ __forceinline__ float3 to_camera(float3 v, const float *R) {
    return make_float3(v.x * R[0] + v.y * R[1] + v.z * R[2], v.x * R[4] + v.y * R[5] + v.z * R[6],
                       v.x * R[8] + v.y * R[9] + v.z * R[10]);
}

__device__ __forceinline__ float3 to_body(float3 v, const float *R) {
    return make_float3(v.x * R[0] + v.y * R[4] + v.z * R[8], v.x * R[1] + v.y * R[5] + v.z * R[9],
                       v.x * R[2] + v.y * R[6] + v.z * R[10]);
}

// The derivative of the basis by the direction, its length not held.
__device__ void sh_basis_jacobian(float x, float y, float z, float3 *out) {
    out[0] = make_float3(0, 0, 0);
#if DEGREE >= 1
    const float c = 0.4886025119029199f;
    out[1] = make_float3(0, -c, 0), out[2] = make_float3(0, 0, c), out[3] = make_float3(-c, 0, 0);
#endif
#if DEGREE >= 2
    const float d = 1.0925484305920792f, e = 0.31539156525252005f, f = 0.5462742152960396f;
    out[4] = make_float3(d * y, d * x, 0), out[5] = make_float3(0, -d * z, -d * y);
    out[6] = make_float3(-2 * e * x, -2 * e * y, 4 * e * z), out[7] = make_float3(-d * z, 0, -d * x);
    out[8] = make_float3(2 * f * x, -2 * f * y, 0);
#endif
#if DEGREE >= 3
    float xx = x * x, yy = y * y, zz = z * z;
    const float g = -0.5900435899266435f, h = 2.890611442640554f, k = -0.4570457994644658f, l = 0.3731763325901154f;
    const float m = 1.445305721320277f;
    out[9] = make_float3(6 * g * x * y, 3 * g * (xx - yy), 0);
    out[10] = make_float3(h * y * z, h * x * z, h * x * y);
    out[11] = make_float3(-2 * k * x * y, k * (4 * zz - xx - 3 * yy), 8 * k * y * z);
    out[12] = make_float3(-6 * l * x * z, -6 * l * y * z, 3 * l * (2 * zz - xx - yy));
    out[13] = make_float3(k * (4 * zz - 3 * xx - yy), -2 * k * x * y, 8 * k * x * z);
    out[14] = make_float3(2 * m * x * z, -2 * m * y * z, m * (xx - yy));
    out[15] = make_float3(3 * g * (xx - yy), -6 * g * x * y, 0);
#endif
}

// By harmonics; returns the gradient by the centre, in the body's frame, through the direction it is seen along.
__device__ float3 by_shading(const Arguments &a, int i, float4 mean, const float *eye, float3 by_colour) {
#if DEGREE == 0
    if (!a.by_harmonics) return make_float3(0, 0, 0);
    float4 c = a.gaussians[4 * i + 3];
    float *to = a.by_harmonics + 3ll * i;
    if (c.x > 0) atomicAdd(to, 0.28209479177387814f * by_colour.x);
    if (c.y > 0) atomicAdd(to + 1, 0.28209479177387814f * by_colour.y);
    if (c.z > 0) atomicAdd(to + 2, 0.28209479177387814f * by_colour.z);
    return make_float3(0, 0, 0);
#else
    const int many = (DEGREE + 1) * (DEGREE + 1);
    const float *c = a.harmonics + 3ll * many * i;
    float x = mean.x - eye[0], y = mean.y - eye[1], z = mean.z - eye[2];
    float scale = 1.0f / fmaxf(1e-12f, sqrtf(x * x + y * y + z * z));
    x *= scale, y *= scale, z *= scale;
    float basis[16];
    float3 jacobian[16], raw = make_float3(0.5f, 0.5f, 0.5f), by = make_float3(0, 0, 0);
    sh_basis(x, y, z, basis), sh_basis_jacobian(x, y, z, jacobian);
    for (int k = 0; k < many; k++)
        raw.x += basis[k] * c[3 * k], raw.y += basis[k] * c[3 * k + 1], raw.z += basis[k] * c[3 * k + 2];
    float3 lit = make_float3(raw.x > 0 ? by_colour.x : 0, raw.y > 0 ? by_colour.y : 0, raw.z > 0 ? by_colour.z : 0);
    for (int k = 0; k < many; k++) {
        float s = lit.x * c[3 * k] + lit.y * c[3 * k + 1] + lit.z * c[3 * k + 2];
        by.x += s * jacobian[k].x, by.y += s * jacobian[k].y, by.z += s * jacobian[k].z;
        if (a.by_harmonics) {
            float *to = a.by_harmonics + 3ll * (many * i + k);
            atomicAdd(to, basis[k] * lit.x), atomicAdd(to + 1, basis[k] * lit.y), atomicAdd(to + 2, basis[k] * lit.z);
        }
    }
    float along = by.x * x + by.y * y + by.z * z;
    return make_float3((by.x - along * x) * scale, (by.y - along * y) * scale, (by.z - along * z) * scale);
#endif
}

#define PUSH 9 // of a body: force and torque about its origin in the camera's frame, pull on the eye in the body's frame

// From the moments of one record: by its Gaussian, and the push on its body.
__device__ void pull_record(const Arguments &a, long long at, const Placed &placed, float *push, int &body) {
    const float *view = placed.view;
    const float *m = a.moments + at * MOMENTS;
    int i = a.ids[at];
    float4 mean = a.gaussians[4 * i], s = a.gaussians[4 * i + 1], t = a.gaussians[4 * i + 2], r = a.records[2 * at];
    body = __float_as_int(mean.w);
    const float *R = placed.frames + FRAME * body;
    float A = -2 / LOG2_E * r.z, B = -1 / LOG2_E * r.w, C = -2 / LOG2_E * a.records[2 * at + 1].x;
    float p00 = A * m[3] + B * m[4], p01 = A * m[4] + B * m[5], p10 = B * m[3] + C * m[4], p11 = B * m[4] + C * m[5];
    float xx = 0.5f * (p00 * A + p01 * B), xy = 0.5f * (p00 * B + p01 * C), yy = 0.5f * (p10 * B + p11 * C);
    float3 p = camera_position(mean, R, view);
    Jacobian J = projection_jacobian(p.x / p.z, p.y / p.z, 1 / p.z, view);
    float3 j = make_float3(J.a0, J.a1, J.a2), k = make_float3(J.b0, J.b1, J.b2), u = to_body(j, R), v = to_body(k, R);
    float3 by_u = times_covariance(s, t, make_float3(2 * (xx * u.x + xy * v.x), 2 * (xx * u.y + xy * v.y), 2 * (xx * u.z + xy * v.z)));
    float3 by_v = times_covariance(s, t, make_float3(2 * (xy * u.x + yy * v.x), 2 * (xy * u.y + yy * v.y), 2 * (xy * u.z + yy * v.z)));
    float3 by_j = to_camera(by_u, R), by_k = to_camera(by_v, R);
    float3 f = by_position(p, view, A * m[1] + B * m[2], B * m[1] + C * m[2], by_j, by_k);
    f.z += m[9];
    float3 shaded = by_shading(a, i, mean, placed.eyes + 3 * body, make_float3(m[6], m[7], m[8]));
    float3 d = make_float3(p.x - R[3], p.y - R[7], p.z - R[11]);
    push[0] = f.x, push[1] = f.y, push[2] = f.z;
    push[3] = d.y * f.z - d.z * f.y + (j.z * by_j.y + k.z * by_k.y) - (j.y * by_j.z + k.y * by_k.z);
    push[4] = d.z * f.x - d.x * f.z + (j.x * by_j.z + k.x * by_k.z) - (j.z * by_j.x + k.z * by_k.x);
    push[5] = d.x * f.y - d.y * f.x + (j.y * by_j.x + k.y * by_k.x) - (j.x * by_j.y + k.x * by_k.y);
    push[6] = -shaded.x, push[7] = -shaded.y, push[8] = -shaded.z;
    if (!a.by_gaussian) return;
    float3 centre = to_body(f, R);
    float by[10] = {centre.x + shaded.x, centre.y + shaded.y, centre.z + shaded.z,
                    xx * u.x * u.x + 2 * xy * u.x * v.x + yy * v.x * v.x,
                    xx * u.x * u.y + xy * (u.x * v.y + u.y * v.x) + yy * v.x * v.y,
                    xx * u.x * u.z + xy * (u.x * v.z + u.z * v.x) + yy * v.x * v.z,
                    xx * u.y * u.y + 2 * xy * u.y * v.y + yy * v.y * v.y,
                    xx * u.y * u.z + xy * (u.y * v.z + u.z * v.y) + yy * v.y * v.z,
                    xx * u.z * u.z + 2 * xy * u.z * v.z + yy * v.z * v.z, m[0]};
    for (int c = 0; c < 10; c++)
        if (by[c] != 0) atomicAdd(a.by_gaussian + 10ll * i + c, by[c]);
}

// One block per image, or several: its records one after the other, the pushes on its bodies, and what they mean in the
// world's frame.
extern "C" __global__ void __launch_bounds__(256) pull_gradients(Arguments a) {
    extern __shared__ float4 shared[];
    int image = a.first + blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, total = a.counts[blockIdx.x];
    Placed placed = place_bodies(a, image, shared);
    float *pushes = placed.end; // [warps, bodies, PUSH]
    for (int k = threadIdx.x; k < 8 * a.bodies * PUSH; k += 256) pushes[k] = 0;
    __syncthreads();
    long long base = (long long)blockIdx.x * a.stride;
    for (int from = blockIdx.y * 256 + warp * 32; from < total; from += 256 * gridDim.y) {
        float push[PUSH] = {};
        int body = -1;
        if (from + lane < total) pull_record(a, base + from + lane, placed, push, body);
        if (!a.by_pose) continue;
        u32 left = __ballot_sync(FULL, body >= 0);
        while (left) {
            int which = __shfl_sync(FULL, body, __ffs(left) - 1);
            for (int k = 0; k < PUSH; k++) {
                float sum = body == which ? push[k] : 0;
                for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(FULL, sum, step);
                if (lane == 0) pushes[(warp * a.bodies + which) * PUSH + k] += sum;
            }
            left &= ~__ballot_sync(FULL, body == which);
        }
    }
    __syncthreads();
    if (!a.by_pose) return;
    float R[9], c[3], B[9], b[3];
    for (int body = threadIdx.x; body < a.bodies; body += 256) {
        float sum[PUSH] = {};
        for (int w = 0; w < 8; w++)
            for (int k = 0; k < PUSH; k++) sum[k] += pushes[(w * a.bodies + body) * PUSH + k];
        camera_pose(a, image, R, c);
        pose_matrix(a.poses + 7ll * ((image / a.cameras) * a.bodies + body), B, b);
        float force[3], torque[3], eye[3], arm[3] = {b[0] - c[0], b[1] - c[1], b[2] - c[2]};
        for (int k = 0; k < 3; k++) {
            force[k] = R[3 * k] * sum[0] + R[3 * k + 1] * sum[1] + R[3 * k + 2] * sum[2];
            torque[k] = R[3 * k] * sum[3] + R[3 * k + 1] * sum[4] + R[3 * k + 2] * sum[5];
            eye[k] = B[3 * k] * sum[6] + B[3 * k + 1] * sum[7] + B[3 * k + 2] * sum[8];
        }
        float *to = a.by_pose + 6ll * ((long long)image * a.bodies + body), *camera = a.by_camera + 6ll * image;
        for (int k = 0; k < 3; k++) {
            int l = (k + 1) % 3, m = (k + 2) % 3;
            atomicAdd(to + k, force[k] - eye[k]);
            atomicAdd(to + 3 + k, torque[k] + arm[l] * eye[m] - arm[m] * eye[l]);
            atomicAdd(camera + k, eye[k] - force[k]);
            atomicAdd(camera + 3 + k, -(torque[k] + arm[l] * force[m] - arm[m] * force[l]));
        }
    }
}

// By a quaternion of any length and by scales, from the gradient g by the covariance S = M M^T, M = turn diag(scales).
__device__ void unfold_covariance(const float *g, const float *given, const float *scales, float *by_quat, float *by_scale) {
    float w = given[0], x = given[1], y = given[2], z = given[3];
    float shrink = rsqrtf(w * w + x * x + y * y + z * z);
    w *= shrink, x *= shrink, y *= shrink, z *= shrink;
    float G[9] = {g[0], g[1], g[2], g[1], g[3], g[4], g[2], g[4], g[5]}, V[9];
    float R[9] = {1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
                  2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                  2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)};
#pragma unroll
    for (int column = 0; column < 3; column++) {
        float scale = scales[column], sum = 0;
#pragma unroll
        for (int row = 0; row < 3; row++) {
            float value = G[3 * row] * R[column] + G[3 * row + 1] * R[3 + column] + G[3 * row + 2] * R[6 + column];
            sum += value * R[3 * row + column];
            V[3 * row + column] = 2 * scale * scale * value;
        }
        by_scale[column] = 2 * scale * sum;
    }
    float by_w = 2 * (x * (V[7] - V[5]) + y * (V[2] - V[6]) + z * (V[3] - V[1]));
    float by_x = 2 * (w * (V[7] - V[5]) + y * (V[1] + V[3]) + z * (V[2] + V[6]) - 2 * x * (V[4] + V[8]));
    float by_y = 2 * (w * (V[2] - V[6]) + x * (V[1] + V[3]) + z * (V[5] + V[7]) - 2 * y * (V[0] + V[8]));
    float by_z = 2 * (w * (V[3] - V[1]) + x * (V[2] + V[6]) + y * (V[5] + V[7]) - 2 * z * (V[0] + V[4]));
    float along = by_w * w + by_x * x + by_y * y + by_z * z;
    by_quat[0] = (by_w - along * w) * shrink, by_quat[1] = (by_x - along * x) * shrink;
    by_quat[2] = (by_y - along * y) * shrink, by_quat[3] = (by_z - along * z) * shrink;
}

extern "C" __global__ void unfold_covariances(Arguments a) {
    long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    unfold_covariance(a.by_gaussian + 10 * i + 3, a.quats + 4 * i, a.scales + 3 * i, a.by_quat + 4 * i, a.by_scale + 3 * i);
}
