// Steps of a fit that stay on the device: the loss of an image by its pixels, and Adam on the parameters of every Gaussian.
//
// image_loss writes the gradient that fused_gradients.cu takes through the blend and the projection; descend takes it on to
// the parameters, moves them, keeps the constraints of fitting.py and packs the Gaussian for the next image.

#define SHAPE 11 // parameters of a Gaussian: centre, quaternion, log scales, logit of the opacity
#define COEFFICIENTS (3 * (DEGREE + 1) * (DEGREE + 1))
#define HUBER 0.1f

struct FitArguments {
    float *shape;            // [n, SHAPE]
    float *shape_first;      // [n, SHAPE] Adam's moments
    float *shape_second;
    float *sh;               // [n, COEFFICIENTS]
    float *sh_first;
    float *sh_second;
    float4 *means;           // as in Arguments
    float4 *gaussians;
    const int *body;
    float *by_gaussian;      // [n, 10], set to 0 when it has been used, as by_harmonics
    float *by_harmonics;     // [n, COEFFICIENTS]
    float *gradient_sums;    // [n] lengths of the gradients by the centres, times the distance from the camera
    float *seen;             // [n] images in which that is not 0
    const unsigned char *held; // [n] whether a Gaussian may not leave the surface; may be 0
    const float *colour;     // [pixels, 3]
    const float *target;     // [pixels, 3]
    const float *weight;     // [pixels]
    float *by_colour;        // [pixels, 3]
    float *loss;             // where the loss of the image is added up
    float normal_x, normal_y, normal_z, offset, tolerance, max_log_thickness; // of the surface
    float eye_x, eye_y, eye_z, max_log_elongation;
    float means_rate, quats_rate, logs_rate, logits_rate, colour_rate, harmonics_rate, first_fade, second_fade;
    int n, pixels;
};

// Huber loss, as in fitting.py: linear beyond a tenth of full brightness.
extern "C" __global__ void __launch_bounds__(256) image_loss(FitArguments f) {
    float sum = 0;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < 3 * f.pixels; i += 256 * gridDim.x) {
        float weight = f.weight[i / 3], error = f.colour[i] - f.target[i];
        f.by_colour[i] = weight * fminf(fmaxf(error, -HUBER), HUBER);
        sum += weight * error * error;
    }
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(FULL, sum, step);
    if (threadIdx.x % 32 == 0) atomicAdd(f.loss, sum);
}

// What the kernels of fused_prepare.cu take of a Gaussian, as `pack` in workspace.py.
__device__ void pack_gaussian(const FitArguments &f, int i, const float *p) {
    float w = p[3], x = p[4], y = p[5], z = p[6], twice = 2 / (w * w + x * x + y * y + z * z);
    float R[9] = {1 - twice * (y * y + z * z), twice * (x * y - w * z), twice * (x * z + w * y),
                  twice * (x * y + w * z), 1 - twice * (x * x + z * z), twice * (y * z - w * x),
                  twice * (x * z - w * y), twice * (y * z + w * x), 1 - twice * (x * x + y * y)};
    float s0 = expf(p[7]), s1 = expf(p[8]), s2 = expf(p[9]), a = s0 * s0, b = s1 * s1, c = s2 * s2;
    float opacity = fmaxf(1 / (1 + expf(-p[10])), 1e-12f), strength = log2f(opacity);
    float reach = opacity >= 1.0f / 255 ? sqrtf(fmaxf(2 / LOG2_E * (strength + LOG2_255), 0.0f)) : -1.0f;
    float xx = a * R[0] * R[0] + b * R[1] * R[1] + c * R[2] * R[2], xy = a * R[0] * R[3] + b * R[1] * R[4] + c * R[2] * R[5];
    float xz = a * R[0] * R[6] + b * R[1] * R[7] + c * R[2] * R[8], yy = a * R[3] * R[3] + b * R[4] * R[4] + c * R[5] * R[5];
    float yz = a * R[3] * R[6] + b * R[4] * R[7] + c * R[5] * R[8], zz = a * R[6] * R[6] + b * R[7] * R[7] + c * R[8] * R[8];
    const float *sh = f.sh + (long long)COEFFICIENTS * i;
    const float base = 0.28209479177387814f;
    f.means[i] = make_float4(p[0], p[1], p[2], reach < 0 ? -1.0f : reach * fmaxf(s0, fmaxf(s1, s2)));
    f.gaussians[4 * i] = make_float4(p[0], p[1], p[2], __int_as_float(f.body[i]));
    f.gaussians[4 * i + 1] = make_float4(xx, xy, xz, yy);
    f.gaussians[4 * i + 2] = make_float4(yz, zz, strength, reach);
    f.gaussians[4 * i + 3] = make_float4(fmaxf(0.5f + base * sh[0], 0), fmaxf(0.5f + base * sh[1], 0),
                                         fmaxf(0.5f + base * sh[2], 0), 0);
}

extern "C" __global__ void pack_gaussians(FitArguments f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < f.n) pack_gaussian(f, i, f.shape + (long long)SHAPE * i);
}

__device__ __forceinline__ void adam(const FitArguments &f, float &value, float gradient, float &first, float &second,
                                     float rate) {
    first = 0.9f * first + 0.1f * gradient;
    second = 0.999f * second + 0.001f * gradient * gradient;
    value -= rate * (first / f.first_fade) / (sqrtf(second / f.second_fade) + 1e-12f);
}

// Moves a Gaussian back to within the tolerance of its plane, its third axis along the normal, and bounds its thickness.
__device__ void hold_on_surface(const FitArguments &f, float *p) {
    float height = p[0] * f.normal_x + p[1] * f.normal_y + p[2] * f.normal_z + f.offset;
    float over = height - fminf(fmaxf(height, -f.tolerance), f.tolerance);
    p[0] -= over * f.normal_x, p[1] -= over * f.normal_y, p[2] -= over * f.normal_z;
    float shrink = rsqrtf(p[3] * p[3] + p[4] * p[4] + p[5] * p[5] + p[6] * p[6]);
    float w = p[3] * shrink, x = p[4] * shrink, y = p[5] * shrink, z = p[6] * shrink;
    float ux = 2 * (x * z + w * y), uy = 2 * (y * z - w * x), uz = 1 - 2 * (x * x + y * y);
    float a = 1 + fmaxf(ux * f.normal_x + uy * f.normal_y + uz * f.normal_z, -0.999f);
    float b = uy * f.normal_z - uz * f.normal_y, c = uz * f.normal_x - ux * f.normal_z, d = ux * f.normal_y - uy * f.normal_x;
    shrink = rsqrtf(a * a + b * b + c * c + d * d);
    a *= shrink, b *= shrink, c *= shrink, d *= shrink;
    p[3] = a * w - b * x - c * y - d * z, p[4] = a * x + b * w + c * z - d * y;
    p[5] = a * y - b * z + c * w + d * x, p[6] = a * z + b * y - c * x + d * w;
    p[9] = fminf(p[9], f.max_log_thickness);
}

// One step of Adam on all parameters of a Gaussian, one thread each.
extern "C" __global__ void __launch_bounds__(128) descend(FitArguments f) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= f.n) return;
    float *shape = f.shape + (long long)SHAPE * i, *first = f.shape_first + (long long)SHAPE * i;
    float *second = f.shape_second + (long long)SHAPE * i, *g = f.by_gaussian + 10ll * i, p[SHAPE], by[SHAPE];
    for (int k = 0; k < SHAPE; k++) p[k] = shape[k];
    float scales[3] = {expf(p[7]), expf(p[8]), expf(p[9])}, opacity = 1 / (1 + expf(-p[10]));
    by[0] = g[0], by[1] = g[1], by[2] = g[2];
    unfold_covariance(g + 3, p + 3, scales, by + 3, by + 7);
    for (int k = 0; k < 3; k++) by[7 + k] *= scales[k];
    by[10] = g[9] * (1 - opacity);
    float dx = p[0] - f.eye_x, dy = p[1] - f.eye_y, dz = p[2] - f.eye_z;
    float size = sqrtf(by[0] * by[0] + by[1] * by[1] + by[2] * by[2]) * sqrtf(dx * dx + dy * dy + dz * dz);
    f.gradient_sums[i] += size;
    f.seen[i] += size > 0;
#pragma unroll
    for (int k = 0; k < SHAPE; k++) {
        float rate = k < 3 ? f.means_rate : k < 7 ? f.quats_rate : k < 10 ? f.logs_rate : f.logits_rate;
        adam(f, p[k], by[k], first[k], second[k], rate);
    }
    for (int k = 0; k < 10; k++) g[k] = 0;
    long long from = (long long)COEFFICIENTS * i;
    for (int k = 0; k < COEFFICIENTS; k++) {
        adam(f, f.sh[from + k], f.by_harmonics[from + k], f.sh_first[from + k], f.sh_second[from + k],
             k < 3 ? f.colour_rate : f.harmonics_rate);
        f.by_harmonics[from + k] = 0;
    }
    float low = fminf(p[7], p[8]), high = fmaxf(p[7], p[8]), middle = fmaxf(low, fminf(high, p[9]));
    for (int k = 7; k < 10; k++) p[k] = fminf(p[k], middle + f.max_log_elongation);
    if (f.held && f.held[i]) hold_on_surface(f, p);
    for (int k = 0; k < SHAPE; k++) shape[k] = p[k];
    pack_gaussian(f, i, p);
}
