// What the phases of a solve share: the matching so far, the potentials, and the short lists.
//
// Invariants, in minimisation form. Row potentials are u_i = min_j c_ij - v_j and not stored. A matched pair is
// tight, c_ij - v_j = u_i (within epsilon in the auction). If there are more columns than rows, v <= 0, and v_j = 0
// for every column that is not matched. So a complete matching is optimal (Jonker & Volgenant 1987).
#pragma once

#include "shortlist.h"

namespace {

template <class Matrix>
struct Matching {
    using Real = typename Matrix::Entry;

    const Matrix& matrix;
    double* v;  // [columns], potentials
    Shortlist<Real>* lists = nullptr;
    int* column_of = nullptr;  // [rows], -1 for a free row
    int* row_of = nullptr;     // [columns], -1 for a free column
    Real* held = nullptr;      // [rows], the entry of a matched row's column: to look it up would be a cache miss
    int* free_rows = nullptr;
    int free_count = 0;

    int rows() const { return matrix.rows; }
    int columns() const { return matrix.columns; }
    bool square() const { return rows() == columns(); }

    void refresh(int i) { make_list(matrix, i, v, lists[i]); }

    BestTwo listed(int i) const { return listed_best<Matrix>(lists[i], v); }

    // Reads the row again if its list cannot tell.
    BestTwo best(int i) {
        BestTwo best = listed(i);
        if (best.second > lists[i].bound) {
            refresh(i);
            best = listed(i);
        }
        return best;
    }

    double own(int i) const { return Matrix::reduced(held[i], v[column_of[i]]); }

    void match(int i, int j, Real cost) {
        column_of[i] = j;
        row_of[j] = i;
        held[i] = cost;
    }

    void release(int i) {
        row_of[column_of[i]] = -1;
        column_of[i] = -1;
    }

    // Row i takes column j; the row that held it, or -1, is free now.
    int seize(int i, int j, Real cost) {
        const int former = row_of[j];
        if (former >= 0) column_of[former] = -1;
        match(i, j, cost);
        return former;
    }

    void collect_free() {
        free_count = 0;
        for (int i = 0; i < rows(); i++)
            if (column_of[i] < 0) free_rows[free_count++] = i;
    }
};

}  // namespace
