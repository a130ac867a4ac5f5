// Potentials from the middle of the optimal ones, so that the next solve finds its pairs still tight.
//
// Paths and bids leave v as low as can be: most rows have a runner-up exactly as good as their own column, and any change
// of the costs frees them. v_j may rise until another row would want column j, by room_j = min_i c_ij - u_i - v_j over the
// rows that do not hold it. All may rise at once, as each rise only lowers u of the row that holds j.
#pragma once

#include "matching.h"

namespace {

template <class Matching>
void center(Matching& state, double* room) {
    const auto& matrix = state.matrix;
    if (!state.square() || matrix.rows < 2) return;
    for (int j = 0; j < matrix.columns; j++) room[j] = BIG;
    for (int i = 0; i < matrix.rows; i++) {
        const int own = state.column_of[i];
        const double kept = room[own];
        lower_to_row(matrix, i, state.own(i), room);
        room[own] = kept;
    }
    for (int j = 0; j < matrix.columns; j++) {
        const double rise = (room[j] - state.v[j]) / 2;
        if (rise > 0) state.v[j] += rise;
    }
}

}  // namespace
