// The second kernel of fused_prepare.cu: which records reach which tile of 4 x 4 pixels.
//
// list_tiles: one block per region of an image, at most 8 x 8 tiles. It collects the region's records in order, marks in a
//     bit matrix which of them reach which tile, and lists the records of every tile. Eight tiles with lists of about equal
//     length are one job, the work of one warp in fused_blend.cu. Where shared memory is too small the region is queued.
// list_queue: the same for the queued regions, in blocks with more shared memory. Where that, or the memory for lists, is
//     too small as well, the region is listed part by part while it is blended.

#define TILE 4   // pixels of a tile along a side
#define ACROSS 8 // tiles of a region along a side, at most
#define JOB 8    // tiles of a job
#define JOBS 8   // of a region, at most
#define QUEUED FULL
#define LIST 128 // entries of a tile that are listed at once where the lists are made part by part
#define LISTED (LIST + 8)
#define LIST_WARPS (LIST_THREADS / 32)

struct Place {
    int image, region; // among those that are rendered at once; of the image
};

struct Region {
    int left, top, right, bottom; // pixels of the image, right and bottom outside
    int columns, tiles;           // tiles along a row, and in all: a multiple of eight
};

struct Entries {
    int n, words;      // entries; words of 32 bits per tile, an odd number, so that tiles lie in different banks
    int band;          // tiles that are done at once, a multiple of eight
    bool direct;       // whether an entry is its record's rank
    const Rank *ranks; // else its rank is here
    u32 *bits;         // [tiles of the band, words] which entries reach a tile
    u16 *places;       // [tiles of the band, words] where the entries of a word begin in the lists
};

__device__ __forceinline__ Region region_of(const Arguments &a, int index) {
    Region out;
    out.left = index % a.across * a.region_width, out.top = index / a.across * a.region_height;
    out.right = min(a.width, out.left + a.region_width), out.bottom = min(a.height, out.top + a.region_height);
    out.columns = a.region_width / TILE;
    out.tiles = out.columns * (a.region_height / TILE);
    return out;
}

__device__ __forceinline__ int upto_lane(int own) {
    int lane = threadIdx.x % 32, sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int left = __shfl_up_sync(FULL, sum, step);
        sum += lane >= step ? left : 0;
    }
    return sum;
}

// Collects the records that reach the region, in order, and lays out the bit matrix in what is left of the pool: four bytes
// for 32 entries at a tile, and two more where `places` are wanted.
__device__ Entries collect(const Arguments &a, Place place, int tiles, u32 *hits, u32 *sums, char *pool, bool places) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int n = a.counts[place.image];
    const u32 *boxes = a.boxes + (long long)place.image * a.stride;
    int column = place.region % a.across, row = place.region / a.across;
    u32 region = region_box(column, column, row, row);
    int per = (n + 128 * LIST_WARPS - 1) / (128 * LIST_WARPS) * 128;
    int from = warp * per, to = min((n + 127) / 128 * 128, from + per);
    const u32 *own = boxes + from + lane;
#pragma unroll 2
    for (int base = from; base < to; base += 128, own += 128) {
        uint4 hit;
        hit.x = __ballot_sync(FULL, reaches(__ldg(own), region));
        hit.y = __ballot_sync(FULL, reaches(__ldg(own + 32), region));
        hit.z = __ballot_sync(FULL, reaches(__ldg(own + 64), region));
        hit.w = __ballot_sync(FULL, reaches(__ldg(own + 96), region));
        if (lane == 0) *(uint4 *)(hits + (u32)base / 32) = hit;
    }
    __syncwarp();
    int count = 0;
    for (int base = from + 32 * lane; base < to; base += 1024) count += __popc(hits[(u32)base / 32]);
    count = __shfl_sync(FULL, upto_lane(count), 31);
    if (lane == 0) sums[warp] = count;
    __syncthreads();
    int total = 0, at = 0;
    for (int w = 0; w < LIST_WARPS; w++) {
        if (w == warp) at = total;
        total += sums[w];
    }
    Entries out;
    int list = align16(total * (int)sizeof(Rank));
    out.n = total, out.words = (total + 31) / 32 | 1;
    int each = JOB * (places ? 6 : 4);
    out.band = (a.pool - list) / (each * out.words) * JOB;
    out.direct = out.band < JOB;
    if (out.direct) out.n = n, out.words = (n + 31) / 32 | 1, out.band = a.pool / (each * out.words) * JOB, list = 0;
    out.band = min(out.band, tiles);
    out.ranks = (Rank *)pool, out.bits = (u32 *)(pool + list), out.places = (u16 *)(out.bits + out.band * out.words);
    if (out.direct) return out;
    for (int base = from; base < to; base += 1024) {
        u32 hit = base + 32 * lane < to ? hits[(u32)base / 32 + lane] : 0;
        int upto = upto_lane(__popc(hit)), to_rank = at + upto - __popc(hit);
        for (; hit; hit &= hit - 1) ((Rank *)pool)[to_rank++] = (Rank)(base + 32 * lane + __ffs(hit) - 1);
        at += __shfl_sync(FULL, upto, 31);
    }
    return out;
}

// The tiles of a region that the ellipse of a record reaches, alpha above 1/255: a bit each, eight to a row.
__device__ __forceinline__ uint2 reached_tiles(const Region &region, float4 r, float4 s) {
    float log_opacity, blue;
    unpack_halves(s.w, blue, log_opacity);
    float k = log_opacity + LOG2_255, a = -r.z, b = -r.w, c = -s.x, det = 4 * a * c - b * b;
    uint2 out = make_uint2(0, 0);
    if (!(k >= 0 && det > 0)) return out;
    const float slack = 0.002f;
    float u = r.x - region.left - 0.5f, v = r.y - region.top - 0.5f;
    float across = k / det, wide = sqrtf(4 * c * across), high = sqrtf(4 * a * across);
    int top = max(0, (int)ceilf(v - high - slack)), bottom = min(region.bottom - region.top - 1, (int)floorf(v + high + slack));
    if (top > bottom) return out;
    float turn = 0.5f * b * wide / c; // how far above the centre the ellipse reaches farthest to the right
    float half = 0.5f / a, tilt = -b * half, flat = 4 * a * k * half * half, bend = det * half * half;
    float begin = u - slack, end = u + slack, from = (top & ~(TILE - 1)) - v;
    int last = region.right - region.left - 1;
    for (int row = (u32)top / TILE; row * TILE <= bottom; row++, from += TILE) {
        float low = fmaxf(from, -high), to = fminf(from + (TILE - 1), high);
        float y = fminf(fmaxf(-turn, low), to), z = fminf(fmaxf(turn, low), to);
        float right = tilt * y + sqrtf(fmaxf(0.0f, flat - bend * y * y));
        float left = tilt * z - sqrtf(fmaxf(0.0f, flat - bend * z * z));
        int x0 = max(0, (int)ceilf(begin + left)), x1 = min(last, (int)floorf(end + right));
        u32 columns = x0 <= x1 ? ((2u << (u32)x1 / TILE) - (1u << (u32)x0 / TILE)) << 8 * (row & 3) : 0;
        if (row < 4) out.x |= columns;
        else out.y |= columns;
    }
    return out;
}

// Values that are kept in registers, where the compiler would compute them again in every round of a loop.
__device__ __forceinline__ u32 in_register(u32 value) {
    asm volatile("" : "+r"(value));
    return value;
}

__device__ __forceinline__ float in_register(float value) {
    return __uint_as_float(in_register(__float_as_uint(value)));
}

__device__ __forceinline__ const char *in_register(const char *value) {
    asm volatile("" : "+l"(value));
    return value;
}

// Rows of bits, one per lane, to columns: blocks of 16, 8, 4, 2 and 1 bits change places, whole bytes by one instruction.
struct Transposer {
    u32 halves, bytes;     // which bytes of the own and of the other word are taken
    u32 keep[3], rotate[3]; // which bits are kept, and how far those of the other word are rotated

    __device__ __forceinline__ Transposer() {
        u32 lane = threadIdx.x % 32;
        halves = in_register(lane & 16 ? 0x3276u : 0x5410u), bytes = in_register(lane & 8 ? 0x3715u : 0x6240u);
        const u32 low[3] = {0x0f0f0f0f, 0x33333333, 0x55555555};
#pragma unroll
        for (int k = 0; k < 3; k++) {
            u32 step = 4 >> k;
            keep[k] = in_register(lane & step ? ~low[k] : low[k]), rotate[k] = in_register(lane & step ? 32 - step : step);
        }
    }

    __device__ __forceinline__ u32 operator()(u32 x) const {
        x = __byte_perm(x, __shfl_xor_sync(FULL, x, 16), halves);
        x = __byte_perm(x, __shfl_xor_sync(FULL, x, 8), bytes);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            u32 y = __shfl_xor_sync(FULL, x, 4 >> k);
            x = (x & keep[k]) | (__funnelshift_l(y, y, rotate[k]) & ~keep[k]);
        }
        return x;
    }
};

// Fills the bit matrix for tiles [first, last), and counts the entries of each; `counts` are 0 before. The tiles of each
// entry are kept where there is room for them.
template <bool KEEP>
__device__ void mark_tiles(const Arguments &a, Place place, const Region &region, const Entries &entries, int first, int last,
                           u32 *counts, uint2 *kept) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float4 *records = a.records + 2ll * place.image * a.stride;
    int upper = lane / ACROSS * region.columns + lane % ACROSS - first, lower = upper + 4 * region.columns;
    bool inside = lane % ACROSS < region.columns;
    bool above = inside && upper >= 0 && upper < last - first, below = inside && lower >= 0 && lower < last - first;
    u32 *to_upper = entries.bits + (int)in_register((u32)(upper * entries.words));
    u32 *to_lower = entries.bits + (int)in_register((u32)(lower * entries.words));
    int marked_above = 0, marked_below = 0;
    Transposer transposed;
    for (int base = warp * 32; base < entries.n; base += LIST_THREADS) {
        uint2 tiles = make_uint2(0, 0);
        if (base + lane < entries.n) {
            u32 rank = entries.direct ? base + lane : entries.ranks[base + lane];
            tiles = reached_tiles(region, records[2ll * rank], records[2ll * rank + 1]);
            if (KEEP) kept[base + lane] = tiles;
        }
        tiles.x = transposed(tiles.x), tiles.y = transposed(tiles.y);
        u32 word = (u32)base / 32;
        if (above) to_upper[word] = tiles.x, marked_above += __popc(tiles.x);
        if (below) to_lower[word] = tiles.y, marked_below += __popc(tiles.y);
    }
    if (above) atomicAdd(counts + upper, marked_above);
    if (below) atomicAdd(counts + lower, marked_below);
}

// The tiles of a band by the number of their entries, the longest list first: those of a job are about equally long.
__device__ void order_tiles(const u32 *counts, int tiles, unsigned char *order) {
    int tile = threadIdx.x;
    if (tile >= tiles) return;
    u32 own = counts[tile] * 64 + 63 - tile, place = 0;
#pragma unroll 8
    for (u32 other = 0; other < tiles; other++) place += counts[other] * 64 + 63 - other > own;
    order[place] = tile;
}

// Where the lists of a band begin: those of a job's tiles are equally long, a multiple of four.
struct Lists {
    Rank *entries;     // ranks of records, tile after tile, in depth order
    u16 *begins, *lengths; // [jobs]
    u32 *total;        // how many there are
};

__device__ void lay_out(const u32 *counts, const unsigned char *order, int jobs, const Lists &lists) {
    int lane = threadIdx.x;
    if (lane >= 32) return;
    int length = lane < jobs ? (counts[order[JOB * lane]] + 3) & ~3 : 0, upto = upto_lane(JOB * length);
    if (lane < jobs) lists.begins[lane] = upto - JOB * length, lists.lengths[lane] = length;
    if (lane == 31) *lists.total = upto;
}

// Fills the lists of all tiles of a region at once; shorter ones of a job end with the record that covers nothing.
__device__ void fill_lists(const Region &region, const Entries &entries, const unsigned char *order, const uint2 *kept,
                           Rank nothing, const Lists &lists) {
    // Four threads take the words of a tile, a quarter each.
    int words = (entries.n + 31) / 32, part = threadIdx.x % 4, quarter = (words + 3) / 4;
    for (int k = threadIdx.x / 4; k < region.tiles; k += LIST_THREADS / 4) {
        int row = order[k] * entries.words, length = lists.lengths[k / JOB], begin = lists.begins[k / JOB] + k % JOB * length;
        int from = min(words, part * quarter), to = min(words, from + quarter), own = 0;
        for (int w = from; w < to; w++) own += __popc(entries.bits[row + w]);
        int upto = own, left = __shfl_up_sync(FULL, upto, 1, 4);
        upto += part ? left : 0, left = __shfl_up_sync(FULL, upto, 2, 4), upto += part & 2 ? left : 0;
        int at = begin + upto - own;
        for (int w = from; w < to; w++) entries.places[row + w] = at, at += __popc(entries.bits[row + w]);
        int filled = __shfl_sync(FULL, upto, 3, 4);
        for (int i = filled + part; i < length; i += 4) lists.entries[begin + i] = nothing;
    }
    __syncthreads();
    for (int entry = threadIdx.x; entry < entries.n; entry += LIST_THREADS) {
        Rank rank = entries.ranks[entry];
        uint2 tiles = kept[entry];
        u32 word = (u32)entry / 32;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            for (u32 left = half ? tiles.y : tiles.x; left; left &= left - 1) {
                u32 bit = __ffs(left) - 1, tile = (bit / ACROSS + 4 * half) * region.columns + bit % ACROSS;
                int at = tile * entries.words + word;
                lists.entries[entries.places[at] + __popc(entries.bits[at] & lanes_before())] = rank;
            }
        }
    }
    __syncthreads();
}

// Shared memory of a block that makes lists.
struct Memory {
    u32 *sums, *counts;   // of warps; of tiles
    unsigned char *order; // of tiles
    Lists lists;
    char *pool;
};

__device__ __forceinline__ Memory memory_of(const Arguments &a, float4 *shared) {
    Memory m;
    m.sums = (u32 *)shared, m.counts = m.sums + 32, m.order = (unsigned char *)(m.counts + 64);
    u16 *begins = (u16 *)(m.order + 64);
    m.lists = {(Rank *)(begins + 32), begins, begins + 16, m.sums + 30};
    m.pool = (char *)m.lists.entries + a.lists;
    return m;
}

// Lists the records of every tile of a region; whether there was room for them.
__device__ __forceinline__ bool list_region(const Arguments &a, Place place, float4 *shared) {
    Memory m = memory_of(a, shared);
    Region region = region_of(a, place.region);
    int jobs = region.tiles / JOB;
    uint4 *table = a.jobs + (place.image * a.regions + place.region) * JOBS;
    Entries entries = collect(a, place, region.tiles, (u32 *)m.lists.entries, m.sums, m.pool, true);
    int room = a.lists - 8 * entries.n; // for the lists, before the tiles of each entry
    uint2 *kept = (uint2 *)((char *)m.lists.entries + room);
    if (threadIdx.x < 64) m.counts[threadIdx.x] = 0;
    if (threadIdx.x == 0) table[0] = make_uint4(0, QUEUED, 0, 0);
    __syncthreads();
    if (entries.band != region.tiles || entries.direct || room < 0) return false;
    mark_tiles<true>(a, place, region, entries, 0, region.tiles, m.counts, kept);
    __syncthreads();
    order_tiles(m.counts, region.tiles, m.order);
    __syncthreads();
    lay_out(m.counts, m.order, jobs, m.lists);
    __syncthreads();
    u32 total = *m.lists.total;
    if ((int)(total * sizeof(Rank)) > room || total > 65535) return false;
    if (threadIdx.x == 0) m.sums[29] = atomicAdd(a.queue + 1, total);
    __syncthreads();
    u32 begin = m.sums[29];
    if (begin + total > a.capacity) return false;
    fill_lists(region, entries, m.order, kept, (Rank)a.counts[place.image], m.lists);
    uint4 *to = (uint4 *)(a.entries + begin), *from = (uint4 *)m.lists.entries;
    for (int i = threadIdx.x; i < (int)(total * sizeof(Rank) / 16); i += LIST_THREADS) to[i] = from[i];
    if (threadIdx.x < jobs) {
        uint2 tiles = ((uint2 *)m.order)[threadIdx.x];
        table[threadIdx.x] = make_uint4(begin + m.lists.begins[threadIdx.x], m.lists.lengths[threadIdx.x], tiles.x, tiles.y);
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS, 5) list_tiles(Arguments a) {
    extern __shared__ float4 shared[];
    bool listed = list_region(a, {(int)blockIdx.y, (int)blockIdx.x}, shared);
    if (!listed && threadIdx.x == 0) a.queue[2 + atomicAdd(a.queue, 1u)] = blockIdx.y * gridDim.x + blockIdx.x;
}

extern "C" __global__ void __launch_bounds__(LIST_THREADS) list_queue(Arguments a) {
    extern __shared__ float4 shared[];
    for (u32 k = blockIdx.x; k < a.queue[0]; k += gridDim.x) {
        u32 index = a.queue[2 + k];
        bool listed = list_region(a, {(int)index / a.regions, (int)index % a.regions}, shared);
        if (!listed && threadIdx.x == 0) a.rest[1 + atomicAdd(a.rest, 1u)] = index;
        __syncthreads();
    }
}

// Where the lists of a band do not fit, those of a job are filled part by part: entries
// are taken from 32 words at a time, LIST of each tile at once.
struct Cursor {
    int word, done; // first of the words; how many of their entries have been listed
};

// Writes the next ranks of each tile into `lists`, and returns how many; 0 at the end. Shorter lists of the job are filled
// up with the record that covers nothing, and all of them with some more.
__device__ int next_lists(const Entries &entries, uint2 tiles, Rank nothing, Rank *lists, Cursor &cursor) {
    int lane = threadIdx.x % 32, words = (entries.n + 31) / 32;
    __syncwarp();
    for (; cursor.word < words; cursor.word += 32, cursor.done = 0) {
        int longest = 0, total[JOB], from = (cursor.word + lane) * 32 - 1;
#pragma unroll
        for (int k = 0; k < JOB; k++) {
            int tile = (k < 4 ? tiles.x : tiles.y) >> 8 * (k & 3) & 255;
            u32 word = cursor.word + lane < words ? entries.bits[tile * entries.words + cursor.word + lane] : 0;
            int upto = upto_lane(__popc(word)), at = upto - __popc(word) - cursor.done;
            total[k] = __shfl_sync(FULL, upto, 31) - cursor.done;
            longest = max(longest, total[k]);
            for (; word; word &= word - 1, at++) {
                int entry = from + __ffs(word);
                if (at >= 0 && at < LIST) lists[k * LISTED + at] = entries.direct ? (Rank)entry : entries.ranks[entry];
            }
        }
        if (longest <= 0) continue;
        int length = min(LIST, longest);
#pragma unroll
        for (int k = 0; k < JOB; k++)
            for (int i = min(max(0, total[k]), LIST) + lane; i < length + 4 - length % 4; i += 32) lists[k * LISTED + i] = nothing;
        __syncwarp();
        cursor.done += LIST;
        if (longest <= LIST) cursor.word += 32, cursor.done = 0;
        return length;
    }
    return 0;
}
