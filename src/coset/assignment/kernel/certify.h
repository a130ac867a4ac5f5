// The certificate: one pass over the matrix, which trusts nothing that the solve did.
//
// u_i = min_j c_ij - v_j makes (u, v) dual feasible whatever v is, if v <= 0 where there are more columns than rows.
// value - bound = sum over rows of (c_i,match[i] - v_match[i] - u_i) - sum over free columns of v_j, whose terms are
// all >= 0: no cancellation.
#pragma once

#include "matching.h"
#include "problem.h"

namespace {

template <class Matching>
void certify(const Matching& state, Problem& problem) {
    double value = 0, gap = 0;
    for (int i = 0; i < state.rows(); i++) {
        const int j = state.column_of[i];
        const auto cost = state.matrix.row(i)[j];
        const double u = row_minimum(state.matrix, i, state.v);
        problem.match[i] = j;
        problem.row_duals[i] = u;
        value += double(cost);
        gap += state.matrix.reduced(cost, state.v[j]) - u;
    }
    for (int j = 0; j < state.columns(); j++)
        if (state.row_of[j] < 0) gap -= state.v[j];
    problem.value = value;
    problem.gap = gap;
}

}  // namespace
