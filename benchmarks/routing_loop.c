/* The same work as route_many, as a plain loop in C: the measure that benchmarks/routing.py takes of it.
 *
 * Each key is hashed as Erlang's phash2 hashes a binary (Bob Jenkins' lookup2), its lowest 21 bits choose the
 * bucket from a table, and the owner of the bucket is written down. The table is filled here, too, with draws
 * of Erlang's exs1024: no part of an answer comes from the Python it is compared with.
 *
 * For little-endian machines. Behind the last key there must be 12 bytes that may be read.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SEEDS = 1 << 21, STATE_WORDS = 16 };
static const uint32_t GOLDEN = 0x9E3779B9;

#define MIX(a, b, c)                            \
    do {                                        \
        a -= b; a -= c; a ^= c >> 13;           \
        b -= c; b -= a; b ^= a << 8;            \
        c -= a; c -= b; c ^= b >> 13;           \
        a -= b; a -= c; a ^= c >> 12;           \
        b -= c; b -= a; b ^= a << 16;           \
        c -= a; c -= b; c ^= b >> 5;            \
        a -= b; a -= c; a ^= c >> 3;            \
        b -= c; b -= a; b ^= a << 10;           \
        c -= a; c -= b; c ^= b >> 15;           \
    } while (0)

/* Of the three words behind the whole blocks, what belongs to a key that has 0 to 11 bytes left. */
static const uint32_t KEPT[12][3] = {
    {0, 0, 0},          {0xFF, 0, 0},          {0xFFFF, 0, 0},          {0xFFFFFF, 0, 0},
    {~0u, 0, 0},        {~0u, 0xFF, 0},        {~0u, 0xFFFF, 0},        {~0u, 0xFFFFFF, 0},
    {~0u, ~0u, 0},      {~0u, ~0u, 0xFF},      {~0u, ~0u, 0xFFFF},      {~0u, ~0u, 0xFFFFFF},
};

static inline uint32_t word(const uint8_t *bytes) {
    uint32_t read;
    memcpy(&read, bytes, sizeof read);
    return read;
}

static inline uint32_t phash2(const uint8_t *key, uint32_t length) {
    uint32_t a = GOLDEN, b = GOLDEN, c = 13 * GOLDEN;
    if (length == 0)
        return c & 0x7FFFFFF;
    uint32_t rest = length % 12;
    for (const uint8_t *end = key + (length - rest); key < end; key += 12) {
        a += word(key);
        b += word(key + 4);
        c += word(key + 8);
        MIX(a, b, c);
    }
    a += word(key) & KEPT[rest][0];
    b += word(key + 4) & KEPT[rest][1];
    c += ((word(key + 8) & KEPT[rest][2]) << 8) + length;
    MIX(a, b, c);
    return c & 0x7FFFFFF;
}

void route(const uint8_t *data, const int32_t *offsets, size_t rows, const uint16_t *table,
           const int32_t *owners, int32_t *destinations) {
    for (size_t row = 0; row < rows; row++) {
        uint32_t hash = phash2(data + offsets[row], (uint32_t)(offsets[row + 1] - offsets[row]));
        destinations[row] = owners[table[hash % SEEDS]];
    }
}

static uint64_t seed_part(uint64_t key, uint64_t factor) {
    return (key + 1) * factor % SEEDS;
}

static uint32_t jump(uint64_t key, uint32_t buckets) {
    uint64_t state[STATE_WORDS];
    uint64_t small = seed_part(key, 2097131) << 43 | seed_part(key, 2097133) << 22 | seed_part(key, 2097143) << 1 | 1;
    for (int i = STATE_WORDS - 1; i >= 0; i--) {
        small ^= small >> 12;
        small ^= small << 25;
        small ^= small >> 27;
        state[i] = small * 2685821657736338717u;
    }
    uint32_t bucket = 0;
    double candidate = 0;
    for (unsigned i = 0; candidate < buckets;) {
        bucket = (uint32_t)candidate;
        uint64_t s0 = state[i], s1 = state[i = (i + 1) % STATE_WORDS];
        s1 ^= s1 << 31;
        s1 ^= s1 >> 11;
        state[i] = s0 ^ s0 >> 30 ^ s1;
        double uniform = (double)(state[i] * 1181783497276652981u) * 0x1p-64;
        candidate = trunc((bucket + 1.0) / uniform);
    }
    return bucket;
}

void fill(uint16_t *table, uint32_t buckets) {
    for (uint64_t key = 0; key < SEEDS; key++)
        table[key] = (uint16_t)jump(key, buckets);
}
