// The library's functions: which variants this processor can run, and a table of problems solved over threads.
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "problem.h"

extern "C" {
void coset_solve_baseline(Problem*);
#if defined(COSET_X86)
void coset_solve_avx2(Problem*);
void coset_solve_avx512(Problem*);
#endif
}

namespace {

using Solve = void (*)(Problem*);

enum Variant : int32_t { BASELINE = 0, AVX2 = 1, AVX512 = 2 };

Solve chosen(int32_t variant) {
    if (variant == BASELINE) return coset_solve_baseline;
#if defined(COSET_X86)
    if (variant == AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi")) return coset_solve_avx2;
    if (variant == AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return coset_solve_avx512;
#endif
    return nullptr;
}

}  // namespace

extern "C" int32_t coset_supports(int32_t variant) { return chosen(variant) != nullptr; }

// Solve all problems with a supported variant. Each thread takes the next problem that none has taken.
extern "C" void coset_solve(Problem* problems, int64_t count, int32_t threads, int32_t variant) {
    const Solve solve = chosen(variant);
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t k; (k = next.fetch_add(1)) < count;) solve(problems + k);
    };
    std::vector<std::thread> others;
    try {
        for (int32_t k = 1; k < threads && k < count; k++) others.emplace_back(work);
    } catch (const std::exception&) {
        // The system gives no more threads; those there are do all the work.
    }
    work();
    for (std::thread& other : others) other.join();
}
