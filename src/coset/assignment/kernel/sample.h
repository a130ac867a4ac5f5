// First potentials of a square problem: from a smaller one, of a sample of its rows and columns.
//
// Prices of a sample are nearly those of the whole, since supply and demand shrink alike. With u of the sampled rows,
// v_j = min_i c_ij - u_i over them gives every column its price. A small problem starts from its columns' minima, u = 0
// (the column reduction of Jonker & Volgenant 1987).
#pragma once

#include "solver.h"
#include "start.h"

namespace {

constexpr int SMALL = 32;   // solved at once
constexpr int PART = 4;     // one row and column in so many is sampled

// The k-th of the sample: one in each group of PART, at a place that no regular pattern follows. Rows and columns are
// sampled alike, since a matching near the identity is common.
inline int sampled(int k, int count) {
    const unsigned scattered = unsigned(k) * 2654435769u >> 16;
    const int at = k * PART + int(scattered % PART);
    return at < count ? at : count - 1;
}

template <class Matrix>
void copy_sample(const Matrix& matrix, int size, typename Matrix::Entry* to) {
    for (int a = 0; a < size; a++) {
        const auto* row = matrix.row(sampled(a, matrix.rows));
        for (int b = 0; b < size; b++) *to++ = row[sampled(b, matrix.columns)];
    }
}

// False if there is no memory.
template <class Matrix>
bool first_potentials(const Matrix& matrix, double* v) {
    for (int j = 0; j < matrix.columns; j++) v[j] = BIG;
    if (matrix.columns <= SMALL) {
        for (int i = 0; i < matrix.rows; i++) lower_to_row(matrix, i, 0, v);
        return true;
    }
    const int size = (matrix.rows + PART - 1) / PART;
    Workspace space;
    typename Matrix::Entry* costs;
    double* prices;
    if (!space.reserve([&](Workspace& from) {
            from.take(costs, size_t(size) * size);
            from.take(prices, size);
        }))
        return false;
    copy_sample(matrix, size, costs);
    Solver<Matrix> solver(Matrix{costs, size, size, size}, prices);
    if (!solver.ready() || !first_potentials(solver.matrix, prices)) return false;
    start_here(solver.state);
    solver.finish();
    for (int k = 0; k < size; k++) lower_to_row(matrix, sampled(k, matrix.rows), solver.state.best(k).first, v);
    return true;
}

}  // namespace
