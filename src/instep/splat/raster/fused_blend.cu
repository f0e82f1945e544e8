// The third kernel of fused_prepare.cu: the blend. A warp takes a job of eight tiles, four lanes a tile, a column of four
// pixels a lane.
//
// What is done with the lists of a job is a worker: it begins a job, walks parts of its lists in order, and ends it.

#define GROUP 4 // lanes of a tile
#define ROWS 4  // pixels of a lane, one below the other
#define WALK_WARPS (WALK_THREADS / 32)
#define STAGES 3 // rounds of four records that a tile has in shared memory: one is blended, the others are copied
#define STAGED 9 // float4 of a tile's four records, and one more, so that tiles lie in different banks
#define STAGE_BYTES (JOB * STAGED * 16)

struct Record {
    float4 place; // u, v, A, B
    float4 rest;  // C, depth, red and green, blue and log2 opacity
};

// Alphas are computed times 2^-118, so that one below 1/255 is below the least normal number and becomes 0 without a
// comparison; transmittances are kept times 2^118.
#define SCALE_LOG2 (126.0f - LOG2_255)
#define SCALE 3.3360998e35f // 2^SCALE_LOG2

struct Pixel {
    float light, floor;           // SCALE times transmittance, 0 when finished; its least, then what was left, negative
    float red, green, blue, deep; // sums of weights times colour and depth
    float limit;                  // depth of the backdrop
};

struct Job {
    int image;           // among those that are rendered at once
    int x, y;            // the uppermost pixel of a lane
    const char *records; // of the image
};

__device__ __forceinline__ Job job_of(const Arguments &a, const Region &region, int image, uint2 tiles, int first) {
    int group = threadIdx.x % 32 / GROUP, part = threadIdx.x % GROUP;
    int tile = first + ((group < 4 ? tiles.x : tiles.y) >> 8 * (group & 3) & 255);
    Job out;
    out.image = image;
    out.x = region.left + TILE * (tile % region.columns) + part;
    out.y = region.top + TILE * (tile / region.columns);
    out.records = (const char *)(a.records + 2ll * image * a.stride);
    return out;
}

struct __align__(4 * sizeof(Rank)) Four {
    Rank a, b, c, d;
};

__device__ __forceinline__ u32 shared_address(const void *at) {
    return (u32)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ Record record_at(const Job &job, Rank rank) {
    const float4 *at = (const float4 *)(job.records + (unsigned long long)rank * 32);
    return {at[0], at[1]};
}

__device__ __forceinline__ void finish(Pixel &p) {
    p.floor = -p.light, p.light = 0;
}

// The alphas of a record at the pixels of a lane, divided by SCALE. Which products are fused with sums is written down here
// and below, so that colours are the same whichever channels are rendered.
__device__ __forceinline__ void scaled_alphas(const Record &record, float x, float y, float (&alpha)[ROWS]) {
    float4 r = record.place, s = record.rest;
    float blue, log_opacity;
    unpack_halves(s.w, blue, log_opacity);
    float dx = x - r.x, dy = y - r.y, side = fmaf(s.x, dy, r.w * dx);
    float power = fmaf(side, dy, fmaf(r.z * dx, dx, log_opacity - SCALE_LOG2)), slope = fmaf(s.x, dy, side);
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        alpha[k] = fast_exp2(k ? fmaf(k, fmaf(k, s.x, slope), power) : power);
#if SOLID
        alpha[k] = fminf(alpha[k], MAX_ALPHA / SCALE);
#endif
    }
}

// One record at the pixels of a lane: their alphas and weights, and the light after it.
__device__ __forceinline__ void pass_record(const Record &record, float x, float y, Pixel (&p)[ROWS], float (&alpha)[ROWS],
                                            float (&weight)[ROWS]) {
    scaled_alphas(record, x, y, alpha);
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
#if OCCLUDE
        if (p[k].limit < record.rest.y && p[k].light > 0) finish(p[k]);
#endif
        weight[k] = alpha[k] * p[k].light, alpha[k] *= SCALE;
        float after = fmaf(weight[k], -SCALE, p[k].light);
        if (after <= p[k].floor) finish(p[k]), weight[k] = 0;
        else p[k].light = after;
    }
}

__device__ __forceinline__ void add_colour(const Record &record, const float (&w)[ROWS], Pixel (&p)[ROWS]) {
    float red, green, blue, log_opacity;
    unpack_halves(record.rest.z, red, green), unpack_halves(record.rest.w, blue, log_opacity);
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        p[k].red = fmaf(w[k], red, p[k].red), p[k].green = fmaf(w[k], green, p[k].green);
        p[k].blue = fmaf(w[k], blue, p[k].blue);
#if DEPTH
        p[k].deep = fmaf(w[k], record.rest.y, p[k].deep);
#endif
    }
}

// Two records at the pixels of a lane. Light never increases, so one comparison after both tells whether a pixel is
// finished by either, which is rare.
__device__ __forceinline__ void add_records(const Record &first, const Record &second, float x, float y, Pixel (&p)[ROWS]) {
    float v[ROWS], w[ROWS], alpha[ROWS];
#if OCCLUDE
    pass_record(first, x, y, p, alpha, v);
    pass_record(second, x, y, p, alpha, w);
#else
    float middle[ROWS], after[ROWS];
    bool last = false;
    scaled_alphas(first, x, y, alpha);
#pragma unroll
    for (int k = 0; k < ROWS; k++) v[k] = alpha[k] * p[k].light, middle[k] = fmaf(v[k], -SCALE, p[k].light);
    scaled_alphas(second, x, y, alpha);
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        w[k] = alpha[k] * middle[k], after[k] = fmaf(w[k], -SCALE, middle[k]);
        last |= after[k] <= p[k].floor;
    }
    if (last) {
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            if (after[k] > p[k].floor) continue;
            bool once = middle[k] > p[k].floor;
            p[k].floor = once ? -middle[k] : -p[k].light;
            v[k] = once ? v[k] : 0, w[k] = 0, after[k] = 0;
        }
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++) p[k].light = after[k];
#endif
    add_colour(first, v, p), add_colour(second, w, p);
}

__device__ __forceinline__ bool finished(const Pixel (&p)[ROWS]) {
    return __all_sync(FULL, fmaxf(fmaxf(p[0].floor, p[1].floor), fmaxf(p[2].floor, p[3].floor)) < 0);
}

__device__ __forceinline__ long long pixel_index(const Arguments &a, int image, int x, int y) {
    return ((long long)image * a.height + y) * a.width + x;
}

__device__ __forceinline__ Pixel full_light(const Arguments &a, int image, int x, int y) {
    Pixel p = {SCALE, MIN_TRANSMITTANCE * SCALE, 0, 0, 0, 0, 0};
#if OCCLUDE
    if (x < a.width && y < a.height) p.limit = a.limit[pixel_index(a, (a.first + image) % a.cameras, x, y)];
#endif
    return p;
}

__device__ __forceinline__ void full_lights(const Arguments &a, const Job &job, Pixel (&p)[ROWS]) {
#pragma unroll
    for (int k = 0; k < ROWS; k++) p[k] = full_light(a, job.image, job.x, job.y + k);
}

__device__ __forceinline__ float light_left(const Pixel &p) {
    return (p.floor < 0 ? -p.floor : p.light) / SCALE;
}

__device__ void write_pixel(const Arguments &a, Pixel p, int image, int x, int y) {
    if (x >= a.width || y >= a.height) return;
    image += a.first;
    long long at = pixel_index(a, image, x, y);
    float rest = light_left(p), cover = 1 - rest;
    if (a.behind) {
        const float *behind = a.behind + 3 * pixel_index(a, image % a.cameras, x, y);
        p.red += rest * behind[0], p.green += rest * behind[1], p.blue += rest * behind[2];
    }
    if (a.colour) a.colour[3 * at] = p.red, a.colour[3 * at + 1] = p.green, a.colour[3 * at + 2] = p.blue;
    if (a.bytes) {
        a.bytes[3 * at] = (unsigned char)(__saturatef(p.red) * 255.0f + 0.5f);
        a.bytes[3 * at + 1] = (unsigned char)(__saturatef(p.green) * 255.0f + 0.5f);
        a.bytes[3 * at + 2] = (unsigned char)(__saturatef(p.blue) * 255.0f + 0.5f);
    }
    if (a.alpha) a.alpha[at] = cover;
#if DEPTH
    if (a.depth) a.depth[at] = cover > 0 ? p.deep / cover : INFINITE;
#endif
}

// Blends the images.
struct Blender {
    Pixel p[ROWS];

    __device__ __forceinline__ void begin(const Arguments &a, const Job &job) {
        full_lights(a, job, p);
    }

    // A list's length is a multiple of four.
    __device__ __forceinline__ void walk(const Arguments &a, const Job &job, const Rank *list, int length) {
        const Four *fours = (const Four *)list;
        int last = length / 4 - 1;
        if (last < 0) return;
        float x = job.x + 0.5f, y = job.y + 0.5f;
        Four now = fours[0], soon = fours[min(1, last)];
        Record first = record_at(job, now.a), second = record_at(job, now.b);
        for (int i = 0; i <= last; i++) {
            Record third = record_at(job, now.c), fourth = record_at(job, now.d);
            add_records(first, second, x, y, p);
            now = soon, soon = fours[min(i + 2, last)];
            first = record_at(job, now.a), second = record_at(job, now.b);
            add_records(third, fourth, x, y, p);
            if (finished(p)) break;
        }
    }

    __device__ __forceinline__ bool done() const {
        return finished(p);
    }

    __device__ __forceinline__ void end(const Arguments &a, const Job &job) {
#pragma unroll
        for (int k = 0; k < ROWS; k++) write_pixel(a, p[k], job.image, job.x, job.y + k);
    }
};

#if __CUDA_ARCH__ >= 800 // below, memory is not copied beside other work
// Copies a record into shared memory, where it is wanted; each call is a group of copies to wait for.
__device__ __forceinline__ void copy_record(const char *records, Rank rank, bool wanted, u32 to) {
    const char *at = records + (unsigned long long)rank * 32;
    if (wanted)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\n cp.async.ca.shared.global [%0 + 16], [%1 + 16], 16;"
                     ::"r"(to), "l"(at) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until the oldest of STAGES - 1 groups of copies is there, for all lanes of the warp.
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncwarp();
}

// Blends lists in global memory. Each lane copies one record of the next four of its tile into shared memory, STAGES - 1
// rounds before the four lanes of the tile read them.
struct StagedBlender : Blender {
    __device__ __forceinline__ void walk(const Arguments &a, const Job &job, const Rank *list, int length) {
        __shared__ float4 staged[WALK_WARPS][STAGES][JOB][STAGED];
        int warp = threadIdx.x / 32, tile = threadIdx.x % 32 / GROUP, part = threadIdx.x % GROUP, rounds = length / 4;
        if (rounds == 0) return;
        const float4 *from = staged[warp][0][tile];
        const char *records = in_register(job.records);
        u32 to = shared_address(from + 2 * part), stage = 0, free = (STAGES - 1) * STAGE_BYTES;
        float x = in_register(job.x + 0.5f), y = in_register(job.y + 0.5f);
        __syncwarp();
        list += part;
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) copy_record(records, list[4 * i], i < rounds, to + i * STAGE_BYTES);
        list += 4 * (STAGES - 1);
        Rank next = *list;
        for (int i = 0; i < rounds; i++) {
            wait_for_copies();
            const float4 *four = (const float4 *)((const char *)from + stage);
            copy_record(records, next, i + STAGES - 1 < rounds, to + free);
            list += 4, next = *list; // up to STAGES rounds behind the end of the list
            Record first = {four[0], four[1]}, second = {four[2], four[3]};
            Record third = {four[4], four[5]}, fourth = {four[6], four[7]};
            add_records(first, second, x, y, p);
            add_records(third, fourth, x, y, p);
            free = stage, stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
            if (finished(p)) break;
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
};
#endif

// Walks the jobs of the regions whose lists were made: one block per region, a long job and a short one per warp.
template <class Worker> __device__ __forceinline__ void walk_lists(const Arguments &a) {
    const uint4 *table = a.jobs + (blockIdx.y * gridDim.x + blockIdx.x) * JOBS;
    Region region = region_of(a, blockIdx.x);
    int warp = threadIdx.x / 32, jobs = region.tiles / JOB;
    if (table[0].y == QUEUED) return;
    for (int round = 0; round < JOBS / WALK_WARPS; round++) {
        int next = round % 2 ? (round + 1) * WALK_WARPS - 1 - warp : round * WALK_WARPS + warp;
        if (next >= jobs) continue;
        uint4 entry = table[next];
        Job job = job_of(a, region, blockIdx.y, make_uint2(entry.z, entry.w), 0);
        Worker worker;
        worker.begin(a, job);
        worker.walk(a, job, a.entries + entry.x + threadIdx.x % 32 / GROUP * entry.y, entry.y);
        worker.end(a, job);
    }
}

// Walks the jobs of the regions that are left in the queue: lists are made again, band by band of tiles, part by part.
template <class Worker> __device__ void walk_queue(const Arguments &a, float4 *shared) {
    Memory m = memory_of(a, shared);
    int lane = threadIdx.x % 32;
    Rank *parts = m.lists.entries + threadIdx.x / 32 * JOB * LISTED;
    for (u32 k = blockIdx.x; k < a.rest[0]; k += gridDim.x) {
        Place place = {(int)a.rest[1 + k] / a.regions, (int)a.rest[1 + k] % a.regions};
        Region region = region_of(a, place.region);
        Rank nothing = (Rank)a.counts[place.image];
        __syncthreads();
        Entries entries = collect(a, place, region.tiles, (u32 *)m.lists.entries, m.sums, m.pool, false);
        for (int first = 0; first < region.tiles; first += entries.band) {
            int last = min(region.tiles, first + entries.band);
            if (threadIdx.x < 64) m.counts[threadIdx.x] = 0;
            if (threadIdx.x == 0) m.sums[31] = 0;
            __syncthreads();
            mark_tiles<false>(a, place, region, entries, first, last, m.counts, 0);
            __syncthreads();
            order_tiles(m.counts, last - first, m.order);
            __syncthreads();
            while (true) {
                int next = lane == 0 ? (int)atomicAdd(&m.sums[31], 1u) : 0;
                next = __shfl_sync(FULL, next, 0);
                if (next >= (last - first) / JOB) break;
                uint2 tiles = ((uint2 *)m.order)[next];
                Job job = job_of(a, region, place.image, tiles, first);
                Worker worker;
                worker.begin(a, job);
                Cursor cursor = {0, 0};
                while (int length = next_lists(entries, tiles, nothing, parts, cursor)) {
                    worker.walk(a, job, parts + lane / GROUP * LISTED, (length + 3) / 4 * 4);
                    if (worker.done()) break;
                }
                worker.end(a, job);
            }
            __syncthreads();
        }
    }
}

extern "C" __global__ void __launch_bounds__(WALK_THREADS, WALK_BLOCKS) blend_lists(Arguments a) {
#if __CUDA_ARCH__ >= 800
    walk_lists<StagedBlender>(a);
#else
    walk_lists<Blender>(a);
#endif
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS) blend_queue(Arguments a) {
    extern __shared__ float4 shared[];
    walk_queue<Blender>(a, shared);
}
