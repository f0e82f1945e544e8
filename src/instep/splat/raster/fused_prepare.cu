// Gaussians for thousands of small images: three kernels, no global sort, no list that can overflow.
//
// prepare (here): one block per image. It composes camera_from_body of every body, culls, sorts by depth in shared memory
//     and writes records in depth order. With more Gaussians than a block can sort, depth_keys, a sort elsewhere and
//     write_records do the same.
// list_tiles (fused_lists.cu): one block per region of an image lists the records that reach each tile of 4 x 4 pixels.
// blend_lists (fused_blend.cu): one warp blends eight tiles.
//
// The formulas are those of gaussian_projection.py and blending.py. Defined by the compiler's options: RANK (the type of
// an index), DEGREE (of the harmonics), LENS, SOLID (an opacity is above 0.999), DEPTH, OCCLUDE (the backdrop has a
// depth), SORT_THREADS, SORT_BLOCKS and ITEMS, LIST_THREADS,
// WALK_THREADS and WALK_BLOCKS.

typedef unsigned int u32;
typedef unsigned short u16;
typedef RANK Rank;

#define NEAR_PLANE 0.01f
#define BLUR 0.3f
#define LOG2_E 1.4426950408889634f
#define LOG2_255 7.994353436858858f
#define MAX_ALPHA 0.999f
#define MIN_TRANSMITTANCE 1e-4f
#define FULL 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)
#define VIEW 17        // numbers of a camera, as in view_parameters
#define MOUNT 12       // numbers of a body_from_camera
#define FRAME 24       // numbers of a camera_from_body, and of a world_from_body
#define WORLD 20       // where camera_from_world begins among the numbers of a camera in shared memory
#define MAX_REGION 127 // largest index of a region along a side, plus 1
#define NOWHERE 0x7f7f7f7fu // the box of a record that reaches no region
#define SORT_WARPS (SORT_THREADS / 32)
#define DIGITS 256

struct Arguments {
    const float4 *means;     // [n] centre in the body's frame; reach times the largest standard deviation, < 0: too faint
    const float4 *gaussians; // [n, 4] centre, body | covariance xx, xy, xz, yy | yz, zz, log2 opacity, reach | colour
    const float *harmonics;  // [n, (degree + 1)^2, 3]; nothing of degree 0
    const int *body;         // [n]
    const double *poses;     // [worlds, bodies, 7]; frames are composed in double precision, as on the CPU
    const float *views;      // [cameras, VIEW]
    const double *mounts;    // [cameras, MOUNT] rows of body_from_camera
    const int *mount_body;   // [cameras]; -1: the world
    float4 *records;         // [images, stride, 2] u, v, A, B | C, depth, red and green, blue and log2 opacity
    u32 *boxes;              // [images, stride] the regions a record reaches
    int *ids;                // [images, stride] which Gaussian a record is of; may be 0
    int *counts;             // [images]
    u32 *keys;               // [images, n] depths, for a sort elsewhere
    uint4 *jobs;             // [images, regions, JOBS] where the lists of eight tiles begin, their length, the tiles
    Rank *entries;           // lists of ranks
    u32 *queue;              // regions in the queue, used entries, then the regions
    u32 *rest;               // regions for which there was no room in the queue either, then the regions
    const long long *order;  // [images, n] the Gaussians by depth, from a sort elsewhere
    float *colour;           // [images, height, width, 3]; may be 0
    unsigned char *bytes;    // [images, height, width, 3]; may be 0
    float *alpha;            // [images, height, width]; may be 0
    float *depth;            // [images, height, width]; may be 0
    const float *behind;     // [cameras, height, width, 3] colour of the backdrop; may be 0
    const float *limit;      // [cameras, height, width] depth of the backdrop; may be 0
    const float *by_colour;  // gradients of the loss by the images; those by alpha and depth may be 0
    const float *by_alpha;
    const float *by_depth;
    float *moments;          // [images, stride, 10] of every record
    float *by_gaussian;      // [n, 10] by centre, covariance xx, xy, xz, yy, yz, zz and log opacity; may be 0
    float *by_harmonics;     // [n, (degree + 1)^2, 3]; may be 0
    const float *quats;      // [n, 4]; this and what follows up to poses only where by_gaussian is there
    const float *scales;     // [n, 3]
    float *by_quat;
    float *by_scale;
    float *by_pose;          // [images, bodies, 6]; this and what follows may be 0
    float *by_camera;        // [images, 6]
    int n, bodies, cameras, first, stride, width, height, region_width, region_height, across, regions, pool, lists;
    u32 capacity; // entries there is room for
};

__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float pack_halves(float low, float high) {
    u32 packed;
    asm("{ .reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b}; }"
        : "=r"(packed)
        : "f"(low), "f"(high));
    return __uint_as_float(packed);
}

__device__ __forceinline__ void unpack_halves(float packed, float &low, float &high) {
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(low), "=f"(high)
        : "r"(__float_as_uint(packed)));
}

__device__ __forceinline__ float inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ u32 lanes_before() {
    return (1u << (threadIdx.x & 31)) - 1;
}

__device__ __forceinline__ int align16(int bytes) {
    return (bytes + 15) & ~15;
}

// ---------------------------------------------------------------------------------------------------- projection

template <class T> __device__ void pose_matrix(const double *pose, T *R, T *t) {
    T w = (T)pose[3], x = (T)pose[4], y = (T)pose[5], z = (T)pose[6];
    T twice = 2 / (w * w + x * x + y * y + z * z);
    R[0] = 1 - twice * (y * y + z * z), R[1] = twice * (x * y - w * z), R[2] = twice * (x * z + w * y);
    R[3] = twice * (x * y + w * z), R[4] = 1 - twice * (x * x + z * z), R[5] = twice * (y * z - w * x);
    R[6] = twice * (x * z - w * y), R[7] = twice * (y * z + w * x), R[8] = 1 - twice * (x * x + y * y);
    t[0] = (T)pose[0], t[1] = (T)pose[1], t[2] = (T)pose[2];
}

template <class T> __device__ void camera_pose(const Arguments &a, int image, T *R, T *t) {
    int world = image / a.cameras, camera = image % a.cameras;
    const double *mount = a.mounts + MOUNT * camera;
    int on = a.mount_body[camera];
    if (on < 0) {
        for (int row = 0; row < 3; row++) {
            for (int k = 0; k < 3; k++) R[3 * row + k] = (T)mount[4 * row + k];
            t[row] = (T)mount[4 * row + 3];
        }
        return;
    }
    T B[9], s[3];
    pose_matrix(a.poses + 7ll * (world * a.bodies + on), B, s);
    for (int row = 0; row < 3; row++) {
        for (int k = 0; k < 3; k++)
            R[3 * row + k] = B[3 * row] * (T)mount[k] + B[3 * row + 1] * (T)mount[4 + k] + B[3 * row + 2] * (T)mount[8 + k];
        t[row] = B[3 * row] * (T)mount[3] + B[3 * row + 1] * (T)mount[7] + B[3 * row + 2] * (T)mount[11] + s[row];
    }
}

// What a block needs of its image, in shared memory: the camera's numbers and its camera_from_world, camera_from_body and
// world_from_body of every body, and the camera's position in every body's frame.
struct Placed {
    float *view, *frames, *eyes, *end;
};

// Composed in double precision and rounded once: depths that differ by one rounding may change places.
__device__ Placed place_bodies(const Arguments &a, int image, float4 *shared) {
    Placed out;
    out.view = (float *)shared, out.frames = out.view + WORLD + 12;
    out.eyes = out.frames + FRAME * a.bodies, out.end = out.eyes + 3 * a.bodies;
    const float *from = a.views + VIEW * (image % a.cameras);
    for (int i = threadIdx.x; i < VIEW; i += blockDim.x) out.view[i] = from[i];
    double C[9], c[3], B[9], s[3];
    for (int b = threadIdx.x; b < a.bodies; b += blockDim.x) {
        camera_pose(a, image, C, c);
        pose_matrix(a.poses + 7ll * ((image / a.cameras) * a.bodies + b), B, s);
        double d[3] = {s[0] - c[0], s[1] - c[1], s[2] - c[2]};
        float *frame = out.frames + FRAME * b, *world = out.view + WORLD;
        for (int row = 0; row < 3; row++) {
            for (int k = 0; k < 3; k++) {
                frame[4 * row + k] = (float)(C[row] * B[k] + C[3 + row] * B[3 + k] + C[6 + row] * B[6 + k]);
                frame[12 + 4 * row + k] = (float)B[3 * row + k];
                if (b == 0) world[4 * row + k] = (float)C[3 * k + row];
            }
            frame[4 * row + 3] = (float)(C[row] * d[0] + C[3 + row] * d[1] + C[6 + row] * d[2]);
            frame[12 + 4 * row + 3] = (float)s[row];
            if (b == 0) world[4 * row + 3] = (float)-(C[row] * c[0] + C[3 + row] * c[1] + C[6 + row] * c[2]);
        }
        for (int k = 0; k < 3; k++) out.eyes[3 * b + k] = (float)-(B[k] * d[0] + B[3 + k] * d[1] + B[6 + k] * d[2]);
    }
    __syncthreads();
    return out;
}

struct Bent {
    float x, y, xx, xy, yy; // where the lens puts a point, and the derivative there
};

__device__ __forceinline__ Bent through_lens(float x, float y, const float *view) {
    Bent out = {x, y, 1.0f, 0.0f, 1.0f};
#if LENS
    float k1 = view[12], k2 = view[13], p1 = view[14], p2 = view[15], k3 = view[16];
    float r2 = x * x + y * y;
    float radial = 1 + r2 * (k1 + r2 * (k2 + r2 * k3)), grow = 2 * (k1 + r2 * (2 * k2 + r2 * 3 * k3));
    out.xx = radial + grow * x * x + 2 * p1 * y + 6 * p2 * x;
    out.xy = grow * x * y + 2 * p1 * x + 2 * p2 * y;
    out.yy = radial + grow * y * y + 6 * p1 * y + 2 * p2 * x;
    out.x = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x);
    out.y = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y;
#endif
    return out;
}

struct Jacobian {
    float a0, a1, a2, b0, b1, b2; // rows of the projection's derivative
};

__device__ __forceinline__ Jacobian projection_jacobian(float nx, float ny, float per_z, const float *view) {
    float x = fminf(fmaxf(nx, view[6]), view[7]), y = fminf(fmaxf(ny, view[8]), view[9]);
    float fx = view[0] * per_z, fy = view[1] * per_z;
#if LENS
    Bent bent = through_lens(x, y, view);
    return {fx * bent.xx, fx * bent.xy, -fx * (bent.xx * x + bent.xy * y),
            fy * bent.xy, fy * bent.yy, -fy * (bent.xy * x + bent.yy * y)};
#else
    return {fx, 0, -fx * x, 0, fy, -fy * y};
#endif
}

// A centre in the camera's frame, by way of the world's with the roundings of a matrix product and of gsplat, so that
// depths that differ by one rounding are sorted as there. The order is also closer to the exact one than by camera_from_body.
__device__ __forceinline__ float3 camera_position(float4 mean, const float *frame, const float *view) {
    const float4 *rows = (const float4 *)(frame + 12);
    float at[3];
#pragma unroll
    for (int k = 0; k < 3; k++) {
        float4 r = rows[k];
        at[k] = __fadd_rn(fmaf(r.z, mean.z, fmaf(r.y, mean.y, __fmul_rn(r.x, mean.x))), r.w);
    }
    rows = (const float4 *)(view + WORLD);
    float seen[3];
#pragma unroll
    for (int k = 0; k < 3; k++) {
        float4 r = rows[k];
        seen[k] = __fadd_rn(fmaf(r.z, at[2], fmaf(r.x, at[0], __fmul_rn(r.y, at[1]))), r.w);
    }
    return make_float3(seen[0], seen[1], seen[2]);
}

// The depth of a Gaussian that may be seen, by a bound of its size; -1 for one that is not.
__device__ __forceinline__ float visible_depth(const Arguments &a, int i, const Placed &placed) {
    const float *view = placed.view;
    float4 mean = a.means[i];
    float3 p = camera_position(mean, placed.frames + FRAME * a.body[i], view);
    if (mean.w < 0 || p.z <= NEAR_PLANE) return -1;
    float per_z = inverse(p.z), nx = p.x * per_z, ny = p.y * per_z;
    if (nx * nx + ny * ny >= view[10]) return -1;
    Bent bent = through_lens(nx, ny, view);
    Jacobian J = projection_jacobian(nx, ny, per_z, view);
    // The reach is at most 3.34 standard deviations, and the blur at most 0.55 px: together below 1.9 px.
#if LENS
    float wide = mean.w * sqrtf(J.a0 * J.a0 + J.a1 * J.a1 + J.a2 * J.a2) + 1.9f;
    float high = mean.w * sqrtf(J.b0 * J.b0 + J.b1 * J.b1 + J.b2 * J.b2) + 1.9f;
#else
    float wide = mean.w * sqrtf(J.a0 * J.a0 + J.a2 * J.a2) + 1.9f, high = mean.w * sqrtf(J.b1 * J.b1 + J.b2 * J.b2) + 1.9f;
#endif
    float u = view[0] * bent.x + view[2], v = view[1] * bent.y + view[3];
    bool outside = u + wide < 0.5f || u - wide > view[4] - 0.5f || v + high < 0.5f || v - high > view[5] - 0.5f;
    return outside ? -1 : p.z;
}

__device__ void sh_basis(float x, float y, float z, float *out) {
    out[0] = 0.28209479177387814f;
#if DEGREE >= 1
    out[1] = -0.4886025119029199f * y, out[2] = 0.4886025119029199f * z, out[3] = -0.4886025119029199f * x;
#endif
#if DEGREE >= 2
    float xx = x * x, yy = y * y, zz = z * z;
    out[4] = 1.0925484305920792f * x * y, out[5] = -1.0925484305920792f * y * z;
    out[6] = 0.31539156525252005f * (2 * zz - xx - yy);
    out[7] = -1.0925484305920792f * x * z, out[8] = 0.5462742152960396f * (xx - yy);
#endif
#if DEGREE >= 3
    out[9] = -0.5900435899266435f * y * (3 * xx - yy), out[10] = 2.890611442640554f * x * y * z;
    out[11] = -0.4570457994644658f * y * (4 * zz - xx - yy);
    out[12] = 0.3731763325901154f * z * (2 * zz - 3 * xx - 3 * yy);
    out[13] = -0.4570457994644658f * x * (4 * zz - xx - yy), out[14] = 1.445305721320277f * z * (xx - yy);
    out[15] = -0.5900435899266435f * x * (xx - 3 * yy);
#endif
}

__device__ float3 colour_of(const Arguments &a, int i, float4 mean, const float *eye) {
#if DEGREE == 0
    float4 c = a.gaussians[4 * i + 3];
    return make_float3(c.x, c.y, c.z);
#else
    const float *c = a.harmonics + 3ll * (DEGREE + 1) * (DEGREE + 1) * i;
    float x = mean.x - eye[0], y = mean.y - eye[1], z = mean.z - eye[2];
    float scale = 1.0f / fmaxf(1e-12f, sqrtf(x * x + y * y + z * z));
    float basis[16];
    sh_basis(x * scale, y * scale, z * scale, basis);
    float3 out = make_float3(0.5f, 0.5f, 0.5f);
#pragma unroll
    for (int k = 0; k < (DEGREE + 1) * (DEGREE + 1); k++) {
        out.x += basis[k] * c[3 * k], out.y += basis[k] * c[3 * k + 1], out.z += basis[k] * c[3 * k + 2];
    }
    return make_float3(fmaxf(out.x, 0), fmaxf(out.y, 0), fmaxf(out.z, 0));
#endif
}

// Regions as four numbers of seven bits: columns from and to, rows from and to, those to counted backwards.
__device__ __forceinline__ u32 region_box(int left, int right, int top, int bottom) {
    return (u32)left | (u32)(MAX_REGION - right) << 8 | (u32)top << 16 | (u32)(MAX_REGION - bottom) << 24;
}

__device__ __forceinline__ bool reaches(u32 box, u32 region) {
    return !(~((region | 0x80808080u) - box) & 0x80808080u);
}

// A row of the projection's derivative by the body's frame.
__device__ __forceinline__ float3 body_row(float j0, float j1, float j2, float4 x, float4 y, float4 z) {
    return make_float3(j0 * x.x + j1 * y.x + j2 * z.x, j0 * x.y + j1 * y.y + j2 * z.y, j0 * x.z + j1 * y.z + j2 * z.z);
}

__device__ __forceinline__ float3 body_row(float j0, float j2, float4 x, float4 z) {
    return make_float3(j0 * x.x + j2 * z.x, j0 * x.y + j2 * z.y, j0 * x.z + j2 * z.z);
}

__device__ void write_record(const Arguments &a, long long at, int i, const Placed &placed) {
    const float *view = placed.view;
    float4 mean = a.gaussians[4 * i], s = a.gaussians[4 * i + 1], t = a.gaussians[4 * i + 2];
    int b = __float_as_int(mean.w);
    const float4 *R = (const float4 *)(placed.frames + FRAME * b);
    float3 p = camera_position(mean, placed.frames + FRAME * b, view);
    float per_z = inverse(p.z), nx = p.x * per_z, ny = p.y * per_z;
    Bent bent = through_lens(nx, ny, view);
    float u = view[0] * bent.x + view[2], v = view[1] * bent.y + view[3];
    Jacobian J = projection_jacobian(nx, ny, per_z, view);
#if LENS
    float3 A = body_row(J.a0, J.a1, J.a2, R[0], R[1], R[2]), B = body_row(J.b0, J.b1, J.b2, R[0], R[1], R[2]);
#else
    float3 A = body_row(J.a0, J.a2, R[0], R[2]), B = body_row(J.b1, J.b2, R[1], R[2]);
#endif
    float a0 = A.x, a1 = A.y, a2 = A.z, b0 = B.x, b1 = B.y, b2 = B.z;
    float p0 = s.x * a0 + s.y * a1 + s.z * a2, p1 = s.y * a0 + s.w * a1 + t.x * a2, p2 = s.z * a0 + t.x * a1 + t.y * a2;
    float q0 = s.x * b0 + s.y * b1 + s.z * b2, q1 = s.y * b0 + s.w * b1 + t.x * b2, q2 = s.z * b0 + t.x * b1 + t.y * b2;
    float xx = a0 * p0 + a1 * p1 + a2 * p2 + BLUR, xy = b0 * p0 + b1 * p1 + b2 * p2;
    float yy = b0 * q0 + b1 * q1 + b2 * q2 + BLUR;
    float wide = t.w * sqrtf(xx), high = t.w * sqrtf(yy);
    float left = fmaxf(0, ceilf(u - wide - 0.5f)), right = fminf(a.width - 1, floorf(u + wide - 0.5f));
    float top = fmaxf(0, ceilf(v - high - 0.5f)), bottom = fminf(a.height - 1, floorf(v + high - 0.5f));
    float column = inverse(a.region_width), row = inverse(a.region_height); // at half a pixel, roundings do not matter
    u32 box = region_box((left + 0.5f) * column, (right + 0.5f) * column, (top + 0.5f) * row, (bottom + 0.5f) * row);
    a.boxes[at] = left <= right && top <= bottom ? box : NOWHERE;
    if (a.ids) a.ids[at] = i;
    float3 c = colour_of(a, i, mean, placed.eyes + 3 * b);
    float scale = LOG2_E / (xx * yy - xy * xy);
    a.records[2 * at] = make_float4(u, v, -0.5f * yy * scale, xy * scale);
    a.records[2 * at + 1] = make_float4(-0.5f * xx * scale, p.z, pack_halves(c.x, c.y), pack_halves(c.z, t.z));
}

// A record that covers nothing, behind the others; boxes are read 128 at a time.
__device__ __forceinline__ void write_end(const Arguments &a, long long base, int total) {
    long long at = base + total;
    for (int r = total; r % 128; r++) a.boxes[base + r] = NOWHERE;
    a.records[2 * at] = make_float4(0, 0, 0, 0);
    a.records[2 * at + 1] = make_float4(0, 1, 0, pack_halves(0, -60000.0f));
    if (a.ids) a.ids[at] = 0;
}

// ------------------------------------------------------------------------------------------------- sort by depth

// Sorts `total` keys and ids in shared memory, stably, eight bits after eight, up to the highest bit of `range`.
__device__ void radix_sort(u32 *keys, u16 *ids, u32 *counters, u32 *digits, int total, u32 range) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int items = (total + SORT_THREADS - 1) / SORT_THREADS, start = warp * items * 32;
    u32 *own = counters + warp * DIGITS;
    u32 key[ITEMS], move[ITEMS]; // a move is the place among equal digits of the warp and the id, 16 bits each
    for (int shift = 0; shift < 32 && range >> shift; shift += 8) {
        for (int d = lane; d < DIGITS; d += 32) own[d] = 0;
        __syncwarp();
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (k >= items) break;
            int at = start + k * 32 + lane;
            bool valid = at < total;
            key[k] = valid ? keys[at] : 0;
            u32 digit = key[k] >> shift & 255, peers = __ballot_sync(FULL, valid);
#pragma unroll
            for (int bit = 0; bit < 8; bit++) {
                bool one = digit >> bit & 1;
                u32 with = __ballot_sync(FULL, one);
                peers &= one ? with : ~with;
            }
            u32 before = own[digit];
            move[k] = (before + __popc(peers & lanes_before())) << 16 | (valid ? ids[at] : 0);
            __syncwarp();
            if (valid && !(peers & lanes_before())) own[digit] = before + __popc(peers);
            __syncwarp();
        }
        __syncthreads();
        u32 sum = 0, upto = 0;
        if (threadIdx.x < DIGITS) {
            for (int w = 0; w < SORT_WARPS; w++) {
                u32 count = counters[w * DIGITS + threadIdx.x];
                counters[w * DIGITS + threadIdx.x] = sum;
                sum += count;
            }
            upto = sum;
            for (int step = 1; step < 32; step *= 2) {
                u32 left = __shfl_up_sync(FULL, upto, step);
                upto += lane >= step ? left : 0;
            }
            if (lane == 31) digits[DIGITS + warp] = upto;
        }
        __syncthreads();
        if (threadIdx.x < DIGITS) {
            for (int w = 0; w < warp; w++) upto += digits[DIGITS + w];
            digits[threadIdx.x] = upto - sum;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ITEMS; k++) {
            if (k >= items) break;
            if (start + k * 32 + lane < total) {
                u32 digit = key[k] >> shift & 255, at = digits[digit] + own[digit] + (move[k] >> 16);
                keys[at] = key[k];
                ids[at] = (u16)move[k];
            }
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(SORT_THREADS, SORT_BLOCKS) prepare(Arguments a) {
    extern __shared__ float4 shared[];
    int image = a.first + blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Placed placed = place_bodies(a, image, shared);
    u32 *digits = (u32 *)placed.end, *counters = digits + DIGITS + 8, *keys = counters + SORT_WARPS * DIGITS;
    u16 *ids = (u16 *)(keys + SORT_THREADS * ITEMS);

    float depths[ITEMS];
    u32 count = 0, low = FULL, high = 0;
    int start = warp * ITEMS * 32;
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        int i = start + k * 32 + lane;
        float z = i < a.n ? visible_depth(a, i, placed) : -1;
        depths[k] = z;
        if (z > 0) low = min(low, __float_as_uint(z)), high = max(high, __float_as_uint(z));
        count += __popc(__ballot_sync(FULL, z > 0));
    }
    for (int step = 16; step; step /= 2) {
        low = min(low, __shfl_xor_sync(FULL, low, step));
        high = max(high, __shfl_xor_sync(FULL, high, step));
    }
    if (lane == 0) counters[3 * warp] = count, counters[3 * warp + 1] = low, counters[3 * warp + 2] = high;
    __syncthreads();
    int total = 0, at = 0;
    for (int w = 0; w < SORT_WARPS; w++) {
        if (w == warp) at = total;
        total += counters[3 * w];
        low = min(low, counters[3 * w + 1]), high = max(high, counters[3 * w + 2]);
    }
#pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        u32 seen = __ballot_sync(FULL, depths[k] > 0);
        if (depths[k] > 0) {
            int to = at + __popc(seen & lanes_before());
            keys[to] = __float_as_uint(depths[k]) - low;
            ids[to] = (u16)(start + k * 32 + lane);
        }
        at += __popc(seen);
    }
    __syncthreads();
    radix_sort(keys, ids, counters, digits, total, total ? high - low : 0);
    long long base = (long long)blockIdx.x * a.stride;
    for (int r = threadIdx.x; r < total; r += SORT_THREADS) write_record(a, base + r, ids[r], placed);
    if (threadIdx.x == 0) {
        a.counts[blockIdx.x] = total;
        write_end(a, base, total);
        if (blockIdx.x == 0) a.queue[0] = a.queue[1] = a.rest[0] = 0;
    }
}

// Where Gaussians are sorted elsewhere, several blocks share an image, in this kernel and the next.
extern "C" __global__ void depth_keys(Arguments a) {
    extern __shared__ float4 shared[];
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) a.queue[0] = a.queue[1] = a.rest[0] = 0;
    Placed placed = place_bodies(a, a.first + blockIdx.x, shared);
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < a.n; i += gridDim.y * blockDim.x) {
        float z = visible_depth(a, i, placed);
        a.keys[(long long)blockIdx.x * a.n + i] = z > 0 ? __float_as_uint(z) : 0x7f800000u;
    }
}

extern "C" __global__ void write_records(Arguments a) {
    extern __shared__ float4 shared[];
    Placed placed = place_bodies(a, a.first + blockIdx.x, shared);
    long long from = (long long)blockIdx.x * a.n, base = (long long)blockIdx.x * a.stride;
    for (int r = blockIdx.y * blockDim.x + threadIdx.x; r < a.n; r += gridDim.y * blockDim.x) {
        int i = (int)a.order[from + r];
        bool seen = a.keys[from + i] != 0x7f800000u;
        bool next = r + 1 < a.n && a.keys[from + a.order[from + r + 1]] != 0x7f800000u;
        if (seen) write_record(a, base + r, i, placed);
        if (seen && !next) {
            a.counts[blockIdx.x] = r + 1;
            write_end(a, base, r + 1);
        }
        if (r == 0 && !seen) {
            a.counts[blockIdx.x] = 0;
            write_end(a, base, 0);
        }
    }
}
