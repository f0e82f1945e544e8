// The third kernel of fused_prepare.cu: the blend. A warp takes a job of four tiles, eight lanes a tile, two pixels a lane.
//
// What is done with the lists of a job is a worker: it begins a job, walks parts of its lists in order, and ends it.

#define GROUP 8 // lanes of a tile
#define WALK_WARPS (WALK_THREADS / 32)

struct Record {
    float4 place; // u, v, A, B
    float4 rest;  // C, depth, red and green, blue and log2 opacity
};

struct Pixel {
    float light, rest, floor;     // transmittance; what a finished pixel had left; transmittance at which it is finished
    float red, green, blue, deep; // sums of weights times colour and depth
    float limit;                  // depth of the backdrop
};

struct Weights {
    float first, second; // of a record at the two pixels of a lane
};

struct Job {
    int image;           // among those that are rendered at once
    int x, y;            // the upper pixel of a lane; the lower one is two rows below
    const char *records; // of the image
};

__device__ __forceinline__ Job job_of(const Arguments &a, const Region &region, int image, u32 tiles, int first) {
    int group = threadIdx.x % 32 / GROUP, part = threadIdx.x % GROUP, tile = first + (tiles >> 8 * group & 255);
    Job out;
    out.image = image;
    out.x = region.left + TILE * (tile % region.columns) + (part & 3);
    out.y = region.top + TILE * (tile / region.columns) + (part >> 2);
    out.records = (const char *)(a.records + 2ll * image * a.stride);
    return out;
}

struct __align__(4 * sizeof(Rank)) Four {
    Rank a, b, c, d;
};

__device__ __forceinline__ Record record_at(const Job &job, Rank rank) {
    const float4 *at = (const float4 *)(job.records + (unsigned long long)rank * 32);
    return {at[0], at[1]};
}

__device__ __forceinline__ float alpha_from_log2(float power) {
    float alpha = fast_exp2(power);
#if SOLID
    alpha = fminf(alpha, MAX_ALPHA);
#endif
    return power >= -LOG2_255 ? alpha : 0.0f;
}

__device__ __forceinline__ void occlude(Pixel &p, float z) {
    if (p.limit < z) p.rest += p.light, p.light = 0, p.floor = -1;
}

__device__ __forceinline__ void finish(Pixel &p, float &weight, float &after) {
    if (after <= p.floor) p.rest += p.light, weight = 0, after = 0, p.floor = -1;
}

// One record at the two pixels of a lane: their weights and alphas, and the light after it.
__device__ __forceinline__ Weights pass_record(const Record &record, float x, float y, Pixel &p, Pixel &q, float2 &alpha) {
    float4 r = record.place, s = record.rest;
    float blue, log_opacity;
    unpack_halves(s.w, blue, log_opacity);
#if OCCLUDE
    occlude(p, s.y), occlude(q, s.y);
#endif
    float dx = x - r.x, dy = y - r.y, tilt = r.w * dx, level = r.z * dx * dx + log_opacity, low = dy + 2;
    alpha.x = alpha_from_log2((s.x * dy + tilt) * dy + level);
    alpha.y = alpha_from_log2((s.x * low + tilt) * low + level);
    Weights w = {alpha.x * p.light, alpha.y * q.light};
    float2 after = make_float2(p.light - w.first, q.light - w.second);
    if (after.x <= p.floor || after.y <= q.floor) finish(p, w.first, after.x), finish(q, w.second, after.y);
    p.light = after.x, q.light = after.y;
    return w;
}

__device__ __forceinline__ Weights add_record(const Record &record, float x, float y, Pixel &p, Pixel &q) {
    float2 alpha;
    Weights w = pass_record(record, x, y, p, q, alpha);
    float red, green, blue, log_opacity;
    unpack_halves(record.rest.z, red, green), unpack_halves(record.rest.w, blue, log_opacity);
    p.red += w.first * red, p.green += w.first * green, p.blue += w.first * blue;
    q.red += w.second * red, q.green += w.second * green, q.blue += w.second * blue;
#if DEPTH
    p.deep += w.first * record.rest.y, q.deep += w.second * record.rest.y;
#endif
    return w;
}

__device__ __forceinline__ bool finished(const Pixel &p, const Pixel &q) {
    return __all_sync(FULL, fmaxf(p.floor, q.floor) < 0);
}

__device__ __forceinline__ long long pixel_index(const Arguments &a, int image, int x, int y) {
    return ((long long)image * a.height + y) * a.width + x;
}

__device__ __forceinline__ Pixel full_light(const Arguments &a, int image, int x, int y) {
    Pixel p = {1, 0, MIN_TRANSMITTANCE, 0, 0, 0, 0, 0};
#if OCCLUDE
    if (x < a.width && y < a.height) p.limit = a.limit[pixel_index(a, (a.first + image) % a.cameras, x, y)];
#endif
    return p;
}

__device__ void write_pixel(const Arguments &a, Pixel p, int image, int x, int y) {
    if (x >= a.width || y >= a.height) return;
    image += a.first;
    long long at = pixel_index(a, image, x, y);
    float rest = p.rest + p.light, cover = 1 - rest;
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
    Pixel p, q;

    __device__ __forceinline__ void begin(const Arguments &a, const Job &job) {
        p = full_light(a, job.image, job.x, job.y), q = full_light(a, job.image, job.x, job.y + 2);
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
            add_record(first, x, y, p, q), add_record(second, x, y, p, q);
            now = soon, soon = fours[min(i + 2, last)];
            first = record_at(job, now.a), second = record_at(job, now.b);
            add_record(third, x, y, p, q), add_record(fourth, x, y, p, q);
            if (finished(p, q)) break;
        }
    }

    __device__ __forceinline__ bool done() const {
        return finished(p, q);
    }

    __device__ __forceinline__ void end(const Arguments &a, const Job &job) {
        write_pixel(a, p, job.image, job.x, job.y), write_pixel(a, q, job.image, job.x, job.y + 2);
    }
};

#if LABELS
// Finds the body with the largest weight at each pixel.
struct Labeller {
    Pixel p, q;
    float shares[2 * LABELS + 2]; // the backdrop's and each body's, at both pixels

    __device__ __forceinline__ void begin(const Arguments &a, const Job &job) {
        p = full_light(a, job.image, job.x, job.y), q = full_light(a, job.image, job.x, job.y + 2);
        for (int b = 0; b < 2 * LABELS + 2; b++) shares[b] = 0;
    }

    __device__ __forceinline__ void walk(const Arguments &a, const Job &job, const Rank *list, int length) {
        const int *ids = a.ids + (long long)job.image * a.stride;
        float2 alpha;
        for (int i = 0; i < length; i++) {
            int label = 2 * a.body[ids[list[i]]] + 2;
            Weights w = pass_record(record_at(job, list[i]), job.x + 0.5f, job.y + 0.5f, p, q, alpha);
            shares[label] += w.first, shares[label + 1] += w.second;
        }
    }

    __device__ __forceinline__ bool done() const {
        return finished(p, q);
    }

    __device__ __forceinline__ void end(const Arguments &a, const Job &job) {
        shares[0] = p.rest + p.light, shares[1] = q.rest + q.light;
        for (int half = 0; half < 2; half++) {
            int best = 0, y = job.y + 2 * half;
            for (int b = 1; b <= LABELS; b++)
                if (shares[2 * b + half] > shares[2 * best + half]) best = b;
            if (job.x < a.width && y < a.height) a.labels[pixel_index(a, a.first + job.image, job.x, y)] = best - 1;
        }
    }
};
#endif

// Walks the jobs of the regions whose lists were made: one block per region, a long job and a short one per warp.
template <class Worker> __device__ __forceinline__ void walk_lists(const Arguments &a) {
    const uint4 *table = a.jobs + (blockIdx.y * gridDim.x + blockIdx.x) * JOBS;
    Region region = region_of(a, blockIdx.x);
    int warp = threadIdx.x / 32, jobs = region.tiles / 4;
    if (table[0].w) return;
    for (int round = 0; round < JOBS / WALK_WARPS; round++) {
        int next = round % 2 ? (round + 1) * WALK_WARPS - 1 - warp : round * WALK_WARPS + warp;
        if (next >= jobs) continue;
        uint4 entry = table[next];
        Job job = job_of(a, region, blockIdx.y, entry.z, 0);
        Worker worker;
        worker.begin(a, job);
        worker.walk(a, job, a.entries + entry.x + threadIdx.x % 32 / GROUP * entry.y, entry.y);
        worker.end(a, job);
    }
}

// Walks the jobs of the regions in the queue: lists are made again, band by band of tiles, and part by part.
template <class Worker> __device__ void walk_queue(const Arguments &a, float4 *shared) {
    Memory m = memory_of(a, shared);
    int lane = threadIdx.x % 32;
    Rank *parts = m.lists.entries + threadIdx.x / 32 * 4 * LISTED;
    for (u32 k = blockIdx.x; k < a.queue[0]; k += gridDim.x) {
        Place place = {(int)a.queue[2 + k] / a.regions, (int)a.queue[2 + k] % a.regions};
        Region region = region_of(a, place.region);
        Rank nothing = (Rank)a.counts[place.image];
        __syncthreads();
        Entries entries = collect(a, place, region.tiles, (u32 *)m.lists.entries, m.sums, m.pool);
        for (int first = 0; first < region.tiles; first += entries.band) {
            int last = min(region.tiles, first + entries.band);
            if (threadIdx.x < 64) m.counts[threadIdx.x] = 0;
            if (threadIdx.x == 0) m.sums[31] = 0;
            __syncthreads();
            mark_tiles(a, place, region, entries, first, last, m.counts, 0);
            __syncthreads();
            order_tiles(m.counts, last - first, m.order);
            __syncthreads();
            while (true) {
                int next = lane == 0 ? (int)atomicAdd(&m.sums[31], 1u) : 0;
                next = __shfl_sync(FULL, next, 0);
                if (next >= (last - first) / 4) break;
                Job job = job_of(a, region, place.image, ((u32 *)m.order)[next], first);
                Worker worker;
                worker.begin(a, job);
                Cursor cursor = {0, 0};
                while (int length = next_lists(entries, ((uchar4 *)m.order)[next], nothing, parts, cursor)) {
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
    walk_lists<Blender>(a);
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS) blend_queue(Arguments a) {
    extern __shared__ float4 shared[];
    walk_queue<Blender>(a, shared);
}

#if LABELS
extern "C" __global__ void __launch_bounds__(WALK_THREADS) label_lists(Arguments a) {
    walk_lists<Labeller>(a);
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS) label_queue(Arguments a) {
    extern __shared__ float4 shared[];
    walk_queue<Labeller>(a, shared);
}
#endif
