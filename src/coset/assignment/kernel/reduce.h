// Augmenting row reduction (Jonker & Volgenant 1987): an auction with epsilon = 0, for a bounded number of bids.
#pragma once

#include "matching.h"

namespace {

constexpr int SWEEPS = 3;

template <class Matching>
void reduce_rows(Matching& state) {
    int* rows = state.free_rows;
    for (int sweep = 0; sweep < SWEEPS && state.free_count > 0; sweep++) {
        long budget = 4L * state.free_count + state.rows() / 4;
        const int count = state.free_count;
        state.free_count = 0;
        for (int next = 0; next < count;) {
            const int i = rows[next++];
            const BestTwo best = state.best(i);
            const auto& list = state.lists[i];
            const bool strict = best.first < best.second;
            if (strict) state.v[list.column[best.at]] -= best.second - best.first;
            // In a tie the runner-up is as good, and may be free.
            const int at = strict || state.row_of[list.column[best.at]] < 0 ? best.at : best.runner_up_at;
            const int former = state.seize(i, list.column[at], list.cost[at]);
            if (former < 0) continue;
            if (strict && budget-- > 0) rows[--next] = former;
            else rows[state.free_count++] = former;
        }
    }
}

}  // namespace
