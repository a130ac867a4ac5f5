// Forward auction with epsilon scaling (Bertsekas 1988), Gauss-Seidel: one row bids at a time.
#pragma once

#include "matching.h"

namespace {

// The first potentials are good, so epsilon starts small. Bids are limited, since a few rows may bid against each other
// for long: paths serve these better.
constexpr double PHASES[] = {0.1, 0.01};
constexpr long BIDS = 10;  // for each row and phase

// Rows bid until none is free or `budget` bids are made. A bid lowers v_j until j is epsilon worse than the runner-up.
template <class Matching>
void bid(Matching& state, double epsilon, long budget) {
    while (state.free_count > 0 && budget-- > 0) {
        const int i = state.free_rows[--state.free_count];
        const BestTwo best = state.best(i);
        const auto& list = state.lists[i];
        const int j = list.column[best.at];
        state.v[j] -= best.second - best.first + epsilon;
        const int former = state.seize(i, j, list.cost[best.at]);
        if (former >= 0) state.free_rows[state.free_count++] = former;
    }
}

// Free the rows whose column is more than epsilon worse than their best.
template <class Matching>
void release_slack(Matching& state, double epsilon) {
    for (int i = 0; i < state.rows(); i++) {
        if (state.column_of[i] < 0) continue;
        const double best = state.best(i).first;
        if (state.own(i) > best + epsilon) state.release(i);
    }
    state.collect_free();
}

// What epsilon is measured in: what a row's list spans, from best to last, for the row in the middle.
template <class Matching>
double middle_span(const Matching& state, double* spans) {
    for (int i = 0; i < state.rows(); i++) spans[i] = state.lists[i].span;
    return limit_for(spans, state.rows(), state.rows() * 2 / 5, state.rows() * 3 / 5);
}

// The power of two below x > 0: with it, prices of integer costs are exact.
inline double rounded(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits &= 0xfff0000000000000u;
    std::memcpy(&x, &bits, sizeof bits);
    return x;
}

// Leaves prices, and the pairs that are tight at them.
template <class Matching>
void auction(Matching& state, double* scratch) {
    const double span = middle_span(state, scratch);
    if (span <= 0) return;
    for (const double part : PHASES) {
        const double epsilon = rounded(part * span);
        release_slack(state, epsilon);
        bid(state, epsilon, BIDS * state.rows());
    }
    release_slack(state, 0);
}

}  // namespace
