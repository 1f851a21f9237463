/* What a Transformer layer computes between its matrix products, in bf16 on a CPU: one pass over memory each.
 *
 * Values are bf16 in memory and fp32 in registers; sums over rows are fp32. A dropped element is a hash of (seed, row,
 * column), so the backward pass draws the same mask again in place of storing it. Every function gives the same bits for
 * the same number of threads.
 *
 * Shape suffixes: T tokens, D columns, P = segments x heads, L longest segment of a bucket, H head, N heads.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint16_t bf16;
#define PARALLEL _Pragma("omp parallel for schedule(static) num_threads(threads)")

static inline float widen(bf16 x) {
    union { uint32_t bits; float value; } u = {(uint32_t)x << 16};
    return u.value;
}

static inline bf16 narrow(float x) { /* to the nearest, ties to even */
    union { float value; uint32_t bits; } u = {x};
    return (bf16)((u.bits + 0x7fffu + ((u.bits >> 16) & 1u)) >> 16);
}

static inline float highest_of(const bf16 *x, int64_t size) { /* as whole numbers of the same order: vectorizes */
    int16_t highest = INT16_MIN;
    for (int64_t j = 0; j < size; j++) {
        const int16_t bits = (int16_t)x[j], ordered = bits ^ ((bits >> 15) & 0x7fff);
        highest = ordered > highest ? ordered : highest;
    }
    return widen((bf16)(highest ^ ((highest >> 15) & 0x7fff)));
}

static inline uint32_t mix(uint32_t h) { /* murmur3's finalizer: every input bit reaches every output bit */
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ (h >> 16);
}

static inline uint32_t key_of_row(uint64_t seed, int64_t row) {
    return mix((uint32_t)seed + mix((uint32_t)row + mix((uint32_t)(seed >> 32))));
}

/* 0 or `scale`; `threshold` is p * 2^32 and 0 keeps everything. */
static inline float keep(uint32_t key, int32_t column, uint32_t threshold, float scale) {
    return mix(key ^ (uint32_t)column * 0x9e3779b1u) >= threshold ? scale : 0.0f;
}

/* For x <= 0, relative error below 2e-7; exp(-60) below -60, where products with the result would be slow denormals. */
static inline float exponential(float x) {
    const float z = -60.0f > x ? -60.0f : x; /* in this order NaN stays NaN */
    const float n = rintf(z * 1.44269504f);
    const float r = z - n * 0.693359375f + n * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    union { int32_t bits; float value; } power = {((int32_t)n + 127) << 23};
    return y * power.value;
}

/* The normal distribution function; `density` receives exp(-x^2 / 2). Abramowitz and Stegun 7.1.26, error 1.5e-7. */
static inline float normal_cdf(float x, float *density) {
    const float e = exponential(-0.5f * x * x);
    const float t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * fabsf(x));
    const float poly = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
    const float upper = 1.0f - 0.5f * poly * t * e;
    *density = e;
    return x < 0.0f ? 1.0f - upper : upper;
}

static void sum_of_threads(const float *parts, int64_t num_parts, int64_t D, float *restrict out) {
    memset(out, 0, D * sizeof(float));
    for (int64_t part = 0; part < num_parts; part++)
        for (int32_t d = 0; d < D; d++) out[d] += parts[part * D + d];
}

/* (T, D) -> (D, T), in squares of 4 x 4 values: four values are one word of 64 bits. */
void transpose(const bf16 *restrict x_TD, bf16 *restrict out_DT, int64_t T, int64_t D, int threads) {
    const int64_t whole_T = T / 4 * 4, whole_D = D / 4 * 4;
    PARALLEL
    for (int64_t block = 0; block < (D + 31) / 32; block++) {
        const int64_t stop = block * 32 + 32 < D ? block * 32 + 32 : D;
        for (int64_t t = 0; t < whole_T; t += 4)
            for (int64_t d = block * 32; d < stop && d < whole_D; d += 4) {
                uint64_t row[4], column[4] = {0, 0, 0, 0};
                for (int i = 0; i < 4; i++) memcpy(row + i, x_TD + (t + i) * D + d, 8);
                for (int i = 0; i < 4; i++)
                    for (int j = 0; j < 4; j++) column[i] |= (row[j] >> (16 * i) & 0xffffu) << (16 * j);
                for (int i = 0; i < 4; i++) memcpy(out_DT + (d + i) * T + t, column + i, 8);
            }
        for (int64_t d = block * 32; d < stop; d++)
            for (int64_t t = d < whole_D ? whole_T : 0; t < T; t++) out_DT[d * T + t] = x_TD[t * D + d];
    }
}

/* y = gelu(x + bias). */
void bias_gelu(const bf16 *restrict x_TD, const bf16 *restrict bias_D, bf16 *restrict y_TD, int64_t T, int64_t D,
               int threads) {
    PARALLEL
    for (int64_t t = 0; t < T; t++) {
        const bf16 *restrict x = x_TD + t * D;
        bf16 *restrict y = y_TD + t * D;
        for (int32_t d = 0; d < D; d++) {
            float density;
            const float value = widen(narrow(widen(x[d]) + widen(bias_D[d])));
            y[d] = narrow(value * normal_cdf(value, &density));
        }
    }
}

/* dx = dy gelu'(x + bias) and its sum over rows. `parts` holds threads x D floats. */
void bias_gelu_backward(const bf16 *restrict dy_TD, const bf16 *restrict x_TD, const bf16 *restrict bias_D,
                        bf16 *restrict dx_TD, float *restrict parts, float *restrict dbias_D, int64_t T, int64_t D,
                        int threads) {
    PARALLEL
    for (int64_t part = 0; part < threads; part++) {
        float *restrict sum = parts + part * D;
        memset(sum, 0, D * sizeof(float));
        for (int64_t t = part * T / threads; t < (part + 1) * T / threads; t++) {
            const bf16 *restrict dy = dy_TD + t * D;
            const bf16 *restrict x = x_TD + t * D;
            bf16 *restrict dx = dx_TD + t * D;
            for (int32_t d = 0; d < D; d++) {
                float density;
                const float value = widen(narrow(widen(x[d]) + widen(bias_D[d])));
                const float cdf = normal_cdf(value, &density);
                const float change = widen(dy[d]) * (cdf + value * density * 0.39894228f);
                dx[d] = narrow(change);
                sum[d] += change;
            }
        }
    }
    sum_of_threads(parts, threads, D, dbias_D);
}

/* y = layer_norm(dropout(x + bias) + residual); x is left as the sum that is normalized. */
void bias_dropout_add_norm(bf16 *restrict x_TD, const bf16 *restrict bias_D, const bf16 *restrict residual_TD,
                           const bf16 *restrict weight_D, const bf16 *restrict shift_D, bf16 *restrict y_TD,
                           float *restrict mean_T, float *restrict rstd_T, int64_t T, int64_t D, float eps,
                           uint32_t threshold, float scale, uint64_t seed, int threads) {
    PARALLEL
    for (int64_t t = 0; t < T; t++) {
        bf16 *restrict x = x_TD + t * D;
        const bf16 *restrict residual = residual_TD + t * D;
        bf16 *restrict y = y_TD + t * D;
        const uint32_t key = key_of_row(seed, t);
        float sum = 0.0f, squares = 0.0f;
        if (threshold)
            for (int32_t d = 0; d < D; d++) {
                const float value = (widen(x[d]) + widen(bias_D[d])) * keep(key, d, threshold, scale);
                x[d] = narrow(value + widen(residual[d]));
                sum += widen(x[d]);
            }
        else
            for (int32_t d = 0; d < D; d++) {
                x[d] = narrow(widen(x[d]) + widen(bias_D[d]) + widen(residual[d]));
                sum += widen(x[d]);
            }
        const float mean = sum / D;
        for (int32_t d = 0; d < D; d++) squares += (widen(x[d]) - mean) * (widen(x[d]) - mean);
        const float rstd = 1.0f / sqrtf(squares / D + eps);
        for (int32_t d = 0; d < D; d++)
            y[d] = narrow((widen(x[d]) - mean) * rstd * widen(weight_D[d]) + widen(shift_D[d]));
        mean_T[t] = mean;
        rstd_T[t] = rstd;
    }
}

/* Gradients of the above: of the residual, of x (under the mask), and the sums over rows (weight, shift, bias; 3 x D).
 * `parts` holds threads x 3 x D floats. */
void bias_dropout_add_norm_backward(const bf16 *restrict dy_TD, const bf16 *restrict x_TD,
                                    const bf16 *restrict weight_D,
                                    const float *restrict mean_T, const float *restrict rstd_T,
                                    bf16 *restrict dresidual_TD, bf16 *restrict dx_TD, float *restrict parts,
                                    float *restrict sums_3D, int64_t T, int64_t D, uint32_t threshold, float scale,
                                    uint64_t seed, int threads) {
    PARALLEL
    for (int64_t part = 0; part < threads; part++) {
        float *restrict of_weight = parts + part * 3 * D;
        float *restrict of_shift = of_weight + D;
        float *restrict of_bias = of_shift + D;
        memset(of_weight, 0, 3 * D * sizeof(float));
        for (int64_t t = part * T / threads; t < (part + 1) * T / threads; t++) {
            const bf16 *restrict dy = dy_TD + t * D;
            const bf16 *restrict x = x_TD + t * D;
            bf16 *restrict dresidual = dresidual_TD + t * D;
            bf16 *restrict dx = dx_TD + t * D;
            const float mean = mean_T[t], rstd = rstd_T[t];
            const uint32_t key = key_of_row(seed, t);
            float along = 0.0f, total = 0.0f;
            for (int32_t d = 0; d < D; d++) {
                const float change = widen(dy[d]), normal = (widen(x[d]) - mean) * rstd;
                of_weight[d] += change * normal;
                of_shift[d] += change;
                total += change * widen(weight_D[d]);
                along += change * widen(weight_D[d]) * normal;
            }
            total /= D;
            along /= D;
            for (int32_t d = 0; d < D; d++) {
                const float normal = (widen(x[d]) - mean) * rstd;
                const float change = (widen(dy[d]) * widen(weight_D[d]) - total - normal * along) * rstd;
                const float under_mask = threshold ? change * keep(key, d, threshold, scale) : change;
                dresidual[d] = narrow(change);
                dx[d] = narrow(under_mask);
                of_bias[d] += under_mask;
            }
        }
    }
    sum_of_threads(parts, threads, 3 * D, sums_3D);
}

/* A bucket's tokens as (P, L, H), (x + bias) scale; empty slots are 0. `start_B` counts from the pack's first token,
 * `bias_NH` may be null. */
void gather_rows(const bf16 *restrict x_TNH, int64_t row_stride, const bf16 *restrict bias_NH,
                 const int32_t *restrict start_B, const int32_t *restrict length_B, bf16 *restrict block_PLH, int64_t B,
                 int64_t N, int64_t L, int64_t H, float scale, int threads) {
    PARALLEL
    for (int64_t p = 0; p < B * N; p++) {
        const int64_t b = p / N, n = p % N, length = length_B[b];
        const bf16 *restrict from = x_TNH + start_B[b] * row_stride + n * H;
        bf16 *restrict to = block_PLH + p * L * H;
        for (int64_t l = 0; l < length; l++)
            if (bias_NH)
                for (int32_t h = 0; h < H; h++)
                    to[l * H + h] = narrow(widen(narrow(widen(from[l * row_stride + h]) + widen(bias_NH[n * H + h]))) * scale);
            else
                for (int32_t h = 0; h < H; h++) to[l * H + h] = narrow(widen(from[l * row_stride + h]) * scale);
        memset(to + length * H, 0, (L - length) * H * sizeof(bf16));
    }
}

/* Blocks back to their tokens, times `scale`. */
void scatter_rows(const bf16 *restrict block_PLH, bf16 *restrict x_TNH, int64_t row_stride,
                  const int32_t *restrict start_B, const int32_t *restrict length_B, int64_t B, int64_t N, int64_t L,
                  int64_t H, float scale, int threads) {
    PARALLEL
    for (int64_t p = 0; p < B * N; p++) {
        const int64_t b = p / N, n = p % N, length = length_B[b];
        const bf16 *restrict from = block_PLH + p * L * H;
        bf16 *restrict to = x_TNH + start_B[b] * row_stride + n * H;
        for (int64_t l = 0; l < length; l++)
            for (int64_t h = 0; h < H; h++) to[l * row_stride + h] = narrow(widen(from[l * H + h]) * scale);
    }
}

/* In place scores -> softmax over what a token sees (its segment; with window >= 0, so many places to either side), 0
 * elsewhere; `used` receives the softmax under the dropout mask and may be null without dropout. Rows of empty slots
 * become 0. Every loop goes over all L columns, a multiple of 16, since what remains of a vector is slow. */
void masked_softmax(bf16 *restrict scores_PLL, bf16 *restrict used_PLL, const int32_t *restrict length_B, int64_t B,
                    int64_t N, int64_t L, int64_t window, uint32_t threshold, float scale, uint64_t seed, int threads) {
    PARALLEL
    for (int64_t p = 0; p < B * N; p++) {
        const int32_t length = length_B[p / N];
        float *restrict row = malloc(L * sizeof(float));
        for (int32_t i = 0; i < length; i++) {
            bf16 *restrict scores = scores_PLL + (p * L + i) * L;
            const int32_t first = window >= 0 && i > window ? i - window : 0;
            const int32_t stop = window >= 0 && i + window + 1 < length ? i + window + 1 : length;
            const float highest = highest_of(scores + first, stop - first);
            float sum = 0.0f;
            for (int32_t j = 0; j < L; j++) {
                const float value = exponential(widen(scores[j]) - highest);
                row[j] = j >= first && j < stop ? value : 0.0f;
                sum += row[j];
            }
            const float share = 1.0f / sum;
            if (!used_PLL) {
                for (int32_t j = 0; j < L; j++) scores[j] = narrow(row[j] * share);
                continue;
            }
            bf16 *restrict used = used_PLL + (p * L + i) * L;
            const uint32_t key = key_of_row(seed, p * L + i);
            for (int32_t j = 0; j < L; j++) {
                scores[j] = narrow(row[j] * share);
                used[j] = narrow(widen(scores[j]) * keep(key, j, threshold, scale));
            }
        }
        memset(scores_PLL + (p * L + length) * L, 0, (L - length) * L * sizeof(bf16));
        if (used_PLL) memset(used_PLL + (p * L + length) * L, 0, (L - length) * L * sizeof(bf16));
        free(row);
    }
}

/* In place gradient of the dropped weights -> gradient of the scores; `used`, if not null, receives the weights under
 * the mask again. */
void masked_softmax_backward(bf16 *restrict change_PLL, const bf16 *restrict weights_PLL, bf16 *restrict used_PLL,
                             const int32_t *restrict length_B, int64_t B, int64_t N, int64_t L, uint32_t threshold,
                             float scale, uint64_t seed, int threads) {
    PARALLEL
    for (int64_t p = 0; p < B * N; p++) {
        const int32_t length = length_B[p / N];
        float *restrict row = malloc(L * sizeof(float));
        for (int32_t i = 0; i < length; i++) {
            bf16 *restrict change = change_PLL + (p * L + i) * L;
            const bf16 *restrict weights = weights_PLL + (p * L + i) * L;
            const uint32_t key = key_of_row(seed, p * L + i);
            float along = 0.0f;
            if (used_PLL) {
                bf16 *restrict used = used_PLL + (p * L + i) * L;
                for (int32_t j = 0; j < L; j++) {
                    const float mask = keep(key, j, threshold, scale);
                    row[j] = widen(change[j]) * mask;
                    used[j] = narrow(widen(weights[j]) * mask);
                    along += row[j] * widen(weights[j]);
                }
            } else
                for (int32_t j = 0; j < L; j++) {
                    row[j] = widen(change[j]);
                    along += row[j] * widen(weights[j]);
                }
            for (int32_t j = 0; j < L; j++) change[j] = narrow((row[j] - along) * widen(weights[j]));
        }
        memset(change_PLL + (p * L + length) * L, 0, (L - length) * L * sizeof(bf16));
        if (used_PLL) memset(used_PLL + (p * L + length) * L, 0, (L - length) * L * sizeof(bf16));
        free(row);
    }
}
