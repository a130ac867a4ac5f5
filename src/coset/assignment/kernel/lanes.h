// Eight doubles at a time, in the compiler's vector notation: one source for AVX-512, AVX2 and any other target.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 8;
constexpr double BIG = 1e300;  // beyond any distance: entries are below 1e290; not an infinity, which compilers may ignore

typedef double Lanes __attribute__((vector_size(64)));
typedef float FloatLanes __attribute__((vector_size(32)));

inline Lanes load(const double* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

inline Lanes load(const float* from) {
#if defined(__AVX512F__)
    return (Lanes)_mm512_cvtps_pd(_mm256_loadu_ps(from));  // g++ 12 would convert in two halves
#else
    FloatLanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return __builtin_convertvector(lanes, Lanes);
#endif
}

inline void store(double* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof lanes); }

inline Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }

inline Lanes all(double value) { return Lanes{} + value; }

inline double least(Lanes a) {
    double low = a[0];
    for (int k = 1; k < LANES; k++) low = a[k] < low ? a[k] : low;
    return low;
}

// Bit k says whether a[k] <= limit.
inline unsigned at_most(Lanes a, double limit) {
#if defined(__AVX512F__)
    return _mm512_cmp_pd_mask((__m512d)a, _mm512_set1_pd(limit), _CMP_LE_OQ);
#elif defined(__AVX2__)
    __m256d half[2];
    std::memcpy(half, &a, sizeof a);
    const __m256d bound = _mm256_set1_pd(limit);
    return unsigned(_mm256_movemask_pd(_mm256_cmp_pd(half[0], bound, _CMP_LE_OQ))) |
           unsigned(_mm256_movemask_pd(_mm256_cmp_pd(half[1], bound, _CMP_LE_OQ))) << 4;
#else
    unsigned bits = 0;
    for (int k = 0; k < LANES; k++) bits |= unsigned(a[k] <= limit) << k;
    return bits;
#endif
}

}  // namespace
