// The first potentials and the first tight pairs; makes all short lists, in one pass over the matrix.
#pragma once

#include "matching.h"

namespace {

inline double size(double x) { return x < 0 ? -x : x; }

// Match row i with a free column that is tight, if its list has one.
template <class Matching>
void match_tight(Matching& state, int i) {
    const auto& list = state.lists[i];
    const double least = state.listed(i).first;
    for (int k = 0; k < list.count; k++) {
        const int j = list.column[k];
        if (state.row_of[j] < 0 && state.matrix.reduced(list.cost[k], state.v[j]) <= least)
            return state.match(i, j, list.cost[k]);
    }
}

// Match row i with column j of an earlier solve, if the pair is tight up to rounding.
template <class Matching>
bool match_again(Matching& state, int i, int64_t j) {
    if (j < 0 || j >= state.columns() || state.row_of[j] >= 0) return false;
    const auto cost = state.matrix.row(i)[j];
    const double rounding = 1e-15 * (size(cost) + size(state.v[j]));
    if (state.matrix.reduced(cost, state.v[j]) > state.listed(i).first + rounding) return false;
    state.match(i, int(j), cost);
    return true;
}

template <class Matching>
void clear(Matching& state) {
    for (int i = 0; i < state.rows(); i++) state.column_of[i] = -1;
    for (int j = 0; j < state.columns(); j++) state.row_of[j] = -1;
}

// Make all lists at the potentials v, and match what is tight.
template <class Matching>
void start_here(Matching& state) {
    clear(state);
    for (int i = 0; i < state.rows(); i++) {
        state.refresh(i);
        match_tight(state, i);
    }
    state.collect_free();
}

// Keep the pairs of `match` that are still tight.
template <class Matching>
void match_warm(Matching& state, const int64_t* match) {
    clear(state);
    for (int i = 0; i < state.rows(); i++) {
        state.refresh(i);
        if (!match_again(state, i, match[i]) && state.square()) match_tight(state, i);
    }
    state.collect_free();
}

// Set v_j = 0 for free columns, as they must have; returns whether all had it.
template <class Matching>
bool settle_free_columns(Matching& state) {
    bool settled = true;
    for (int j = 0; j < state.columns(); j++) {
        const double wanted = state.row_of[j] < 0 || state.v[j] > 0 ? 0 : state.v[j];
        settled = settled && state.v[j] == wanted;
        state.v[j] = wanted;
    }
    return settled;
}

constexpr double USEFUL = 0.6;  // with more rows free, earlier potentials are worse than none

// From earlier potentials, which may be of any other problem. False if they are of no use.
template <class Matching>
bool start_warm(Matching& state, const int64_t* match, double largest) {
    const double here = largest_size(state.v, state.columns());
    if (here < 0 || here > 1000 * largest) return false;  // rounding of the potentials would drown the costs
    match_warm(state, match);
    if (state.square()) return state.free_count <= USEFUL * state.rows();
    // A column that is set to 0 may break pairs that were tight, and so free more columns.
    for (int round = 0; round < 3; round++) {
        if (settle_free_columns(state)) return true;
        match_warm(state, match);
    }
    return settle_free_columns(state);
}

}  // namespace
