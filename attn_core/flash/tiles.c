/* What is read off a tile of log weights in one pass while it is still in the cache.

   Every function takes a tile (heads, rows, columns) of s = score − lse, row-major with strides, −∞ where a pair may
   not attend; the weight is exp(s). Outputs are added to or compared with what earlier tiles left in them, so a caller
   walks over a map tile by tile. attn_core/flash/compiled.py compiles this file where there is a compiler; tiles.py
   states the same in torch where there is none. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 4096 /* columns of a tile: a row of weights stays in the first-level cache */

/* exp(x) for x up to a few units above 0, within 2 ulp; 0 where it would be below the normal numbers.

   Cody & Waite: x = n ln 2 + r, exp(x) = 2^n exp(r), and a polynomial for |r| ≤ ln 2 / 2. Written so that compilers
   vectorise it on any chip. */
static inline float exponential(float x) {
    const float round_to_integer = 12582912.0f; /* 1.5 · 2^23 */
    float bounded = x < -87.0f ? -87.0f : x;
    float shifted = bounded * 1.44269504088896341f + round_to_integer;
    float n = shifted - round_to_integer;
    float r = bounded - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union {
        int32_t bits;
        float value;
    } scale;
    scale.bits = ((int32_t)n + 127) << 23;
    return x < -87.0f ? 0.0f : p * scale.value;
}

static float largest_of(const float *values, int64_t count) {
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < count; j++) largest = values[j] > largest ? values[j] : largest;
    return largest;
}

static void keep_largest(const float *values, int64_t count, int64_t first, float *largest, int32_t *place) {
    float here = largest_of(values, count);
    if (!(here > *largest)) return;
    *largest = here;
    for (int64_t j = 0; j < count; j++)
        if (values[j] == here) {
            *place = (int32_t)(first + j);
            return;
        }
}

/* Products of rows with keys. Keys lie in panels of PANEL of them, the first number of each, then the second of each, so
   that a panel stays in the first-level cache while rows pass by, and a block of rows in registers: LANES numbers of a
   vector register, 2 of them for each of ROWS rows. */
#if defined(__AVX512F__)
#define LANES 16
#define ROWS 12
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#define ROWS 6
#elif defined(__ARM_NEON)
#define LANES 4
#define ROWS 8
#endif

#ifdef LANES
#define PANEL (2 * LANES)
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));

static inline __attribute__((always_inline)) void block_products(const int rows, const int add, const float *left,
                                                                 int64_t left_stride, const float *panel,
                                                                 int64_t width, float *out, int64_t out_stride) {
    lanes sums[ROWS][2];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        sums[i][0] = add ? *(lanes *)(out + i * out_stride) : (lanes){0};
        sums[i][1] = add ? *(lanes *)(out + i * out_stride + LANES) : (lanes){0};
    }
    for (int64_t k = 0; k < width; k++) {
        const lanes first = *(const lanes *)(panel + k * PANEL);
        const lanes second = *(const lanes *)(panel + k * PANEL + LANES);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            const float factor = left[i * left_stride + k];
            sums[i][0] += factor * first;
            sums[i][1] += factor * second;
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        *(lanes *)(out + i * out_stride) = sums[i][0];
        *(lanes *)(out + i * out_stride + LANES) = sums[i][1];
    }
}

/* out (rows, PANEL) = left (rows, width) times a panel, or that added to it. */
static inline __attribute__((always_inline)) void panel_products(const int add, int64_t rows, const float *left,
                                                                 int64_t left_stride, const float *panel,
                                                                 int64_t width, float *out, int64_t out_stride) {
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS)
        block_products(ROWS, add, left + row * left_stride, left_stride, panel, width, out + row * out_stride,
                       out_stride);
    for (; row + 4 <= rows; row += 4)
        block_products(4, add, left + row * left_stride, left_stride, panel, width, out + row * out_stride,
                       out_stride);
    for (; row < rows; row++)
        block_products(1, add, left + row * left_stride, left_stride, panel, width, out + row * out_stride,
                       out_stride);
}

/* out (heads, rows, columns) = rows of left (heads, ·, width) times the keys from first_column on.

   Each of the groups of keys serves group_size heads; its panels lie group_stride numbers after those of the one
   before. */
void tile_products(const float *left, int64_t heads, int64_t rows, int64_t width, int64_t head_stride,
                   const float *panels, int64_t group_size, int64_t group_stride, int64_t first_column,
                   int64_t columns, float *out) {
    const int64_t together = 6 * ROWS, chunks = (rows + together - 1) / together, stop = first_column + columns;
#pragma omp parallel for collapse(2) schedule(static) if (heads * rows * columns > 32768)
    for (int64_t head = 0; head < heads; head++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const int64_t row = chunk * together, count = rows - row < together ? rows - row : together;
            const float *some = left + head * head_stride + row * width;
            float *into = out + (head * rows + row) * columns, partly[6 * ROWS * PANEL];
            for (int64_t start = first_column / PANEL * PANEL; start < stop; start += PANEL) {
                const float *panel = panels + head / group_size * group_stride + start * width;
                if (start >= first_column && start + PANEL <= stop) {
                    panel_products(0, count, some, width, panel, width, into + start - first_column, columns);
                    continue;
                }
                const int64_t from = start < first_column ? first_column : start;
                const int64_t to = start + PANEL < stop ? start + PANEL : stop;
                panel_products(0, count, some, width, panel, width, partly, PANEL);
                for (int64_t i = 0; i < count; i++)
                    memcpy(into + i * columns + from - first_column, partly + i * PANEL + from - start,
                           (size_t)(to - from) * sizeof(float));
            }
        }
}

/* Attention of a strip of queries (Dao et al. 2022, algorithm 1, with the sums of a row kept beside it): context
   (heads, rows, width) and log-sum-exp (heads, rows).

   Query i of the strip sees the keys up to i + last, all where last is no less than their number. Values lie in panels
   too: the first PANEL numbers of every key, then the second of every key. scale is above 0; widths reach WIDEST. */
#define TOGETHER (6 * ROWS)
#define TILE_KEYS 256
#define WIDEST 256

void strip_attention(const float *query, int64_t heads, int64_t rows, int64_t key_width, int64_t head_stride,
                     int64_t row_stride, const float *key_panels, const float *value_panels, int64_t group_size,
                     int64_t keys, int64_t value_width, float scale, int64_t last, float *context,
                     int64_t context_head_stride, int64_t context_row_stride, float *log_sum_exp,
                     int64_t lse_head_stride) {
    const int64_t chunks = (rows + TOGETHER - 1) / TOGETHER;
    const int64_t padded_keys = (keys + PANEL - 1) / PANEL * PANEL;
    const int64_t width_panels = (value_width + PANEL - 1) / PANEL;
#pragma omp parallel for collapse(2) schedule(dynamic) if (heads * rows * keys > 32768)
    for (int64_t head = 0; head < heads; head++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            float scores[TOGETHER * TILE_KEYS] __attribute__((aligned(64)));
            float sums[TOGETHER * WIDEST] __attribute__((aligned(64))), largest[TOGETHER], total[TOGETHER];
            const int64_t row = chunk * TOGETHER, count = rows - row < TOGETHER ? rows - row : TOGETHER;
            const int64_t sum_stride = width_panels * PANEL;
            const float *left = query + head * head_stride + row * row_stride;
            const float *own_keys = key_panels + head / group_size * padded_keys * key_width;
            const float *own_values = value_panels + head / group_size * width_panels * padded_keys * PANEL;
            const int64_t seen = row + count + last < keys ? (row + count + last > 0 ? row + count + last : 0) : keys;
            for (int64_t i = 0; i < count * sum_stride; i++) sums[i] = 0.0f;
            for (int64_t i = 0; i < count; i++) largest[i] = -INFINITY, total[i] = 0.0f;
            for (int64_t start = 0; start < seen; start += TILE_KEYS) {
                const int64_t stop = start + TILE_KEYS < seen ? start + TILE_KEYS : seen;
                const int64_t width = (stop - start + PANEL - 1) / PANEL * PANEL;
                for (int64_t j = 0; j < width; j += PANEL)
                    panel_products(0, count, left, row_stride, own_keys + (start + j) * key_width, key_width,
                                   scores + j, TILE_KEYS);
                for (int64_t i = 0; i < count; i++) {
                    float *s = scores + i * TILE_KEYS;
                    const int64_t allowed = row + i + last + 1 < stop ? row + i + last + 1 : stop;
                    const int64_t own = allowed > start ? allowed - start : 0;
                    const float here = scale * largest_of(s, own), highest = here > largest[i] ? here : largest[i];
                    for (int64_t j = own; j < width; j++) s[j] = 0.0f;
                    if (own == 0) continue;
                    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                    for (int64_t j = 0; j < own; j++) {
                        s[j] = exponential(scale * s[j] - highest);
                        sum += s[j];
                    }
                    if (highest > largest[i]) {
                        const float shrink = exponential(largest[i] - highest);
                        total[i] *= shrink;
                        float *of_row = sums + i * sum_stride;
#pragma omp simd
                        for (int64_t k = 0; k < sum_stride; k++) of_row[k] *= shrink;
                        largest[i] = highest;
                    }
                    total[i] += sum;
                }
                for (int64_t panel = 0; panel < width_panels; panel++)
                    panel_products(1, count, scores, TILE_KEYS,
                                   own_values + (panel * padded_keys + start) * PANEL, width, sums + panel * PANEL,
                                   sum_stride);
            }
            for (int64_t i = 0; i < count; i++) {
                const float share = total[i] == 0.0f ? 0.0f : 1.0f / total[i]; /* NaN where something is not a number */
                float *into = context + head * context_head_stride + (row + i) * context_row_stride;
                for (int64_t k = 0; k < value_width; k++) into[k] = sums[i * sum_stride + k] * share;
                log_sum_exp[head * lse_head_stride + row + i] =
                    total[i] == 0.0f ? -INFINITY : largest[i] + logf(total[i]);
            }
        }
}

int64_t panel_width(void) { return PANEL; }
#else
void strip_attention(const float *query, int64_t heads, int64_t rows, int64_t key_width, int64_t head_stride,
                     int64_t row_stride, const float *key_panels, const float *value_panels, int64_t group_size,
                     int64_t keys, int64_t value_width, float scale, int64_t last, float *context,
                     int64_t context_head_stride, int64_t context_row_stride, float *log_sum_exp,
                     int64_t lse_head_stride) {}

void tile_products(const float *left, int64_t heads, int64_t rows, int64_t width, int64_t head_stride,
                   const float *panels, int64_t group_size, int64_t group_stride, int64_t first_column,
                   int64_t columns, float *out) {}

int64_t panel_width(void) { return 0; }
#endif

/* Sums over a row. Pointers that are NULL are not asked for. */
typedef struct {
    float *entropy;          /* (heads, rows) −Σ p log p */
    float *largest;          /* (heads, rows) log of the largest weight, and the first key that has it */
    int32_t *strongest;
    float *largest_open;     /* the same over keys that are not barred */
    int32_t *strongest_open;
    float *distance;         /* (heads, rows) Σ p · distance */
    float *direction;        /* (heads, rows) Σ p · (key x − query x) */
    float *matched;          /* (heads, rows, kinds) Σ p over keys whose number of a kind is the query's */
    float *band;             /* (heads, rows, offsets) p of the key at an offset from the query's own place */
    float *others;           /* (heads, rows) Σ p over counted keys but the query's own */
    float *squares;          /* (heads, rows) Σ p² over the same keys */
    float *liked;            /* (heads, rows) Σ p · likeness over the same keys */
    float *received;         /* (heads, lefts, received_stride): Σ over rows of left · p, at this tile's first column */
    int64_t received_stride;
} Sums;

/* Where keys and queries lie, and what is known of them. */
typedef struct {
    const float *row_y, *row_x;       /* (rows) */
    const float *column_y, *column_x; /* (columns) */
    const float *counted;             /* (columns) 1 for a key that takes part in what follows the band, else 0 */
    const float *barred;              /* (columns) 0, or −∞ for a key that is left out of the largest */
    const float *likeness;            /* (rows, columns) */
    const int32_t *row_numbers;       /* (kinds, rows) */
    const int32_t *column_numbers;    /* (kinds, columns) */
    const int32_t *earlier;           /* (kinds) not 0: only keys before the query's own place match */
    const int32_t *offsets;           /* (offset_count) */
    const float *left;                /* (heads or 1, lefts, rows) */
    int64_t lefts, left_head_stride, kinds, offset_count;
    int64_t first_column, first_place; /* of the tile's first key, and the key place of its first query */
    int32_t flat; /* distances along x alone */
} Places;

void tile_sums(const float *scores, int64_t heads, int64_t rows, int64_t columns, int64_t head_stride,
               int64_t row_stride, const Places *places, const Sums *sums) {
#pragma omp parallel for schedule(static) if (heads > 1 && heads * rows * columns > 32768)
    for (int64_t head = 0; head < heads; head++) {
        float weights[LONGEST], open[LONGEST];
        for (int64_t row = 0; row < rows; row++) {
            const float *s = scores + head * head_stride + row * row_stride;
            const int64_t at = head * rows + row;
            float entropy = 0.0f;
#pragma omp simd reduction(+ : entropy)
            for (int64_t j = 0; j < columns; j++) {
                float p = exponential(s[j]);
                weights[j] = p;
                entropy -= p > 0.0f ? p * s[j] : 0.0f;
            }
            if (sums->entropy) sums->entropy[at] += entropy;
            if (sums->largest) keep_largest(s, columns, places->first_column, sums->largest + at, sums->strongest + at);
            if (sums->largest_open) {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) open[j] = s[j] + places->barred[j];
                keep_largest(open, columns, places->first_column, sums->largest_open + at, sums->strongest_open + at);
            }
            for (int64_t k = 0; k < places->lefts; k++) {
                const float factor = places->left[head * places->left_head_stride + k * rows + row];
                float *received = sums->received + (head * places->lefts + k) * sums->received_stride;
                if (factor != 0.0f) {
#pragma omp simd
                    for (int64_t j = 0; j < columns; j++) received[j] += factor * weights[j];
                }
            }
            const int64_t own = places->first_place + row - places->first_column; /* the query's own key, in the tile */
            for (int64_t k = 0; k < places->kinds; k++) {
                const int32_t *numbers = places->column_numbers + k * columns;
                const int32_t number = places->row_numbers[k * rows + row];
                int64_t stop = columns;
                if (places->earlier[k]) stop = own < 0 ? 0 : own < columns ? own : columns;
                float matched = 0.0f;
#pragma omp simd reduction(+ : matched)
                for (int64_t j = 0; j < stop; j++) matched += numbers[j] == number ? weights[j] : 0.0f;
                sums->matched[at * places->kinds + k] += matched;
            }
            for (int64_t k = 0; k < places->offset_count; k++) {
                const int64_t j = own + places->offsets[k];
                if (j >= 0 && j < columns) sums->band[at * places->offset_count + k] = weights[j];
            }
            if (places->counted) {
#pragma omp simd
                for (int64_t j = 0; j < columns; j++) weights[j] *= places->counted[j];
            }
            if (sums->squares && sums->others && own >= 0 && own < columns) weights[own] = 0.0f; /* at distance 0 */
            if (sums->squares && sums->others) {
                float others = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : others, squares)
                for (int64_t j = 0; j < columns; j++) {
                    others += weights[j];
                    squares += weights[j] * weights[j];
                }
                sums->others[at] += others;
                sums->squares[at] += squares;
            }
            if (sums->squares && sums->others && sums->liked) {
                const float *likeness = places->likeness + row * columns;
                float liked = 0.0f;
#pragma omp simd reduction(+ : liked)
                for (int64_t j = 0; j < columns; j++) liked += weights[j] * likeness[j];
                sums->liked[at] += liked;
            }
            if (sums->direction || (sums->distance && places->flat)) {
                const float x = places->row_x[row];
                float distance = 0.0f, direction = 0.0f;
#pragma omp simd reduction(+ : distance, direction)
                for (int64_t j = 0; j < columns; j++) {
                    float along = places->column_x[j] - x;
                    distance += weights[j] * fabsf(along);
                    direction += weights[j] * along;
                }
                if (sums->distance) sums->distance[at] += distance;
                if (sums->direction) sums->direction[at] += direction;
            } else if (sums->distance) {
                const float x = places->row_x[row], y = places->row_y[row];
                float distance = 0.0f;
#pragma omp simd reduction(+ : distance)
                for (int64_t j = 0; j < columns; j++) {
                    float along = places->column_x[j] - x, down = places->column_y[j] - y;
                    distance += weights[j] * sqrtf(along * along + down * down);
                }
                sums->distance[at] += distance;
            }
        }
    }
}

/* Weights in place of log weights. */
void tile_weights(float *scores, int64_t heads, int64_t rows, int64_t columns, int64_t head_stride,
                  int64_t row_stride) {
#pragma omp parallel for collapse(2) schedule(static) if (heads * rows * columns > 32768)
    for (int64_t head = 0; head < heads; head++)
        for (int64_t row = 0; row < rows; row++) {
            float *s = scores + head * head_stride + row * row_stride;
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) s[j] = exponential(s[j]);
        }
}

/* Bins of rows × bins of columns: the largest log weight, or the sum of weights.

   row_bins (bins, 2) and column_bins (cells, 2) are first and one after the last, inside the tile; cells are written
   from first_cell on in rows of the (heads, bins, cells_in_all) output. */
void tile_pooled(const float *scores, int64_t heads, int64_t columns, int64_t head_stride, int64_t row_stride,
                 int64_t bins, const int32_t *row_bins, int64_t cells, const int32_t *column_bins, float *pooled,
                 int64_t pooled_head_stride, int64_t pooled_bin_stride, int32_t mean) {
#pragma omp parallel for schedule(static) if (heads > 1)
    for (int64_t head = 0; head < heads; head++) {
        float across[LONGEST];
        for (int64_t bin = 0; bin < bins; bin++) {
            if (row_bins[2 * bin] >= row_bins[2 * bin + 1]) continue;
            for (int64_t j = 0; j < columns; j++) across[j] = mean ? 0.0f : -INFINITY;
            for (int64_t row = row_bins[2 * bin]; row < row_bins[2 * bin + 1]; row++) {
                const float *s = scores + head * head_stride + row * row_stride;
                if (mean) {
#pragma omp simd
                    for (int64_t j = 0; j < columns; j++) across[j] += exponential(s[j]);
                } else {
#pragma omp simd
                    for (int64_t j = 0; j < columns; j++) across[j] = s[j] > across[j] ? s[j] : across[j];
                }
            }
            float *out = pooled + head * pooled_head_stride + bin * pooled_bin_stride;
            for (int64_t cell = 0; cell < cells; cell++) { /* bins of few keys, too short for vectors */
                const int64_t low = column_bins[2 * cell], high = column_bins[2 * cell + 1];
                if (high <= low) continue;
                if (mean) {
                    float sum = 0.0f;
                    for (int64_t j = low; j < high; j++) sum += across[j];
                    out[cell] += sum;
                } else {
                    float largest = across[low];
                    for (int64_t j = low + 1; j < high; j++) largest = across[j] > largest ? across[j] : largest;
                    out[cell] = largest > out[cell] ? largest : out[cell];
                }
            }
        }
    }
}

/* The k largest log weights of each row so far, largest first; of equal ones the first key. */
void tile_strongest(const float *scores, int64_t heads, int64_t rows, int64_t columns, int64_t head_stride,
                    int64_t row_stride, int64_t first_column, int64_t k, float *values, int32_t *keys) {
#pragma omp parallel for collapse(2) schedule(static) if (heads * rows * columns > 32768)
    for (int64_t head = 0; head < heads; head++)
        for (int64_t row = 0; row < rows; row++) {
            const float *s = scores + head * head_stride + row * row_stride;
            float *best = values + (head * rows + row) * k;
            int32_t *places = keys + (head * rows + row) * k;
            for (int64_t start = 0; start < columns; start += 64) {
                const int64_t stop = start + 64 < columns ? start + 64 : columns;
                if (!(largest_of(s + start, stop - start) > best[k - 1])) continue;
                for (int64_t j = start; j < stop; j++) {
                    if (!(s[j] > best[k - 1])) continue;
                    int64_t place = k - 1;
                    for (; place > 0 && s[j] > best[place - 1]; place--) {
                        best[place] = best[place - 1];
                        places[place] = places[place - 1];
                    }
                    best[place] = s[j];
                    places[place] = (int32_t)(first_column + j);
                }
            }
        }
}

/* One step of relevance (Chefer et al. 2021): out[j] += Σ_i left_i · mean over heads of p · slope, negative parts cut.

   slopes are the gradients of the weights, laid out as the scores. With each_head the negative part is cut before the
   mean, else after it. Threads share the columns. */
void tile_relevance(const float *scores, const float *slopes, int64_t heads, int64_t rows, int64_t columns,
                    int64_t head_stride, int64_t row_stride, const float *left, int32_t each_head, float *out) {
    const int64_t piece = 128;
#pragma omp parallel for schedule(static) if (columns > piece && heads * rows * columns > 32768)
    for (int64_t start = 0; start < columns; start += piece) {
        const int64_t count = start + piece < columns ? piece : columns - start;
        float mixed[128];
        for (int64_t row = 0; row < rows; row++) {
            if (left[row] == 0.0f) continue;
            for (int64_t j = 0; j < count; j++) mixed[j] = 0.0f;
            for (int64_t head = 0; head < heads; head++) {
                const int64_t at = head * head_stride + row * row_stride + start;
                const float *s = scores + at, *g = slopes + at;
                if (each_head) {
#pragma omp simd
                    for (int64_t j = 0; j < count; j++) {
                        float value = exponential(s[j]) * g[j];
                        mixed[j] += value > 0.0f ? value : 0.0f;
                    }
                } else {
#pragma omp simd
                    for (int64_t j = 0; j < count; j++) mixed[j] += exponential(s[j]) * g[j];
                }
            }
            const float factor = left[row] / (float)heads;
#pragma omp simd
            for (int64_t j = 0; j < count; j++) out[start + j] += factor * (mixed[j] > 0.0f ? mixed[j] : 0.0f);
        }
    }
}
