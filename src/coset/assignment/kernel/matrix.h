// The cost matrix where it lies, seen as a minimisation, and passes over one of its rows.
#pragma once

#include "lanes.h"

namespace {

template <class Real, bool MAXIMIZE>
struct Matrix {
    using Entry = Real;

    const Real* data;
    int64_t stride;
    int rows;
    int columns;

    const Real* row(int i) const { return data + i * stride; }

    static double cost(Real entry) { return MAXIMIZE ? -double(entry) : double(entry); }
    static Lanes costs(const Real* entries) { return MAXIMIZE ? -load(entries) : load(entries); }

    // Reduced costs c_ij - v_j, also of eight columns at once.
    static double reduced(Real c, double v) { return cost(c) - v; }
    static Lanes reduced(const Real* c, const double* v) { return costs(c) - load(v); }
};

constexpr double LIMIT = 1e290;  // entries must be smaller, so that distances stay below BIG

inline uint32_t size_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

inline uint64_t size_bits(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffffffffffu;
}

inline uint32_t limit_bits(float) { return 0x7f800000u; }  // infinity
inline uint64_t limit_bits(double) { return size_bits(LIMIT); }

// max_j |x_j|, or -1 if an entry is NaN, infinite or not below LIMIT. Sizes are compared as integers, which order
// like them: compilers may take NaN and infinity for absent.
template <class Real>
double largest_size(const Real* x, int count) {
    auto largest = size_bits(Real(0));
    for (int j = 0; j < count; j++) {
        const auto bits = size_bits(x[j]);
        largest = bits > largest ? bits : largest;
    }
    if (largest >= limit_bits(Real(0))) return -1;
    Real size;
    std::memcpy(&size, &largest, sizeof size);
    return double(size);
}

// low[j] = min(low[j], c_ij - u)
template <class M>
void lower_to_row(const M& matrix, int i, double u, double* low) {
    const auto* c = matrix.row(i);
    int j = 0;
    for (; j + LANES <= matrix.columns; j += LANES) store(low + j, smaller(M::costs(c + j) - u, load(low + j)));
    for (; j < matrix.columns; j++) {
        const double h = M::cost(c[j]) - u;
        low[j] = h < low[j] ? h : low[j];
    }
}

// min_j c_ij - v_j
template <class M>
double row_minimum(const M& matrix, int i, const double* v) {
    const auto* c = matrix.row(i);
    Lanes low[4] = {all(BIG), all(BIG), all(BIG), all(BIG)};
    int j = 0;
    for (; j + 4 * LANES <= matrix.columns; j += 4 * LANES)
        for (int k = 0; k < 4; k++) low[k] = smaller(M::reduced(c + j + k * LANES, v + j + k * LANES), low[k]);
    double minimum = least(smaller(smaller(low[0], low[1]), smaller(low[2], low[3])));
    for (; j < matrix.columns; j++) {
        const double h = M::reduced(c[j], v[j]);
        minimum = h < minimum ? h : minimum;
    }
    return minimum;
}

}  // namespace
