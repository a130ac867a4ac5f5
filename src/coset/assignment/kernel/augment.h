// Shortest augmenting paths (Jonker & Volgenant 1987), on the short lists.
//
// Dijkstra's search from a free row over columns. A matched column leads on to its row, whose listed columns are
// relaxed. The columns that are not listed are no nearer than the row's bound, so the row goes into the heap at that
// distance, and is read in full only if the search gets there.
#pragma once

#include "heap.h"
#include "matching.h"

namespace {

template <class Matching>
struct Search {
    Matching& state;
    Heap heap = {};              // columns, and after them rows that may have to be read in full
    double* distance = nullptr;  // [columns], BIG if not reached
    double* offset = nullptr;    // [rows], what a path pays before it leaves the row
    int* before = nullptr;       // [columns], the row that a column was reached from
    int* reached = nullptr;      // columns to reset
    int* settled = nullptr;      // columns whose distance is final
    int* free_columns = nullptr;
    int reached_count = 0, settled_count = 0, free_count = 0;
    double end_distance = BIG;
    int end = -1;  // the nearest free column so far

    // Column j is reached from row i by a path of this length.
    void relax(int i, int j, double length) {
        if (length >= distance[j] || length >= end_distance) return;
        if (distance[j] == BIG) reached[reached_count++] = j;
        distance[j] = length;
        before[j] = i;
        if (state.row_of[j] < 0) {
            end_distance = length;
            end = j;
        } else {
            heap.lower(j, length);
        }
    }

    // The same for an entry of row i. Rounding can make it nearer than the search is, which it is not.
    template <class Real>
    void relax_entry(int i, int j, Real entry, double now) {
        const double length = state.matrix.reduced(entry, state.v[j]) + offset[i];
        relax(i, j, length > now ? length : now);
    }

    // Relax the listed columns of row i; `now` is how far the search is.
    void visit(int i, double now) {
        const auto& list = state.lists[i];
        for (int k = 0; k < list.count; k++) relax_entry(i, list.column[k], list.cost[k], now);
        const double rest = list.bound + offset[i];
        if (rest < end_distance) heap.lower(state.columns() + i, rest > now ? rest : now);
    }

    // Relax every column of row i: the free ones first, since beyond the nearest of them nothing matters.
    void expand(int i, double now) {
        const auto& matrix = state.matrix;
        const auto* c = matrix.row(i);
        const double* v = state.v;
        for (int k = 0; k < free_count; k++) relax_entry(i, free_columns[k], c[free_columns[k]], now);
        int j = 0;
        for (; j + LANES <= matrix.columns; j += LANES) {
            const Lanes gain = matrix.reduced(c + j, v + j) - smaller(load(distance + j), all(end_distance));
            for (unsigned bits = at_most(gain, -offset[i]); bits; bits &= bits - 1) {
                const int k = j + __builtin_ctz(bits);
                relax_entry(i, k, c[k], now);
            }
        }
        for (; j < matrix.columns; j++) relax_entry(i, j, c[j], now);
    }

    void prepare() {
        heap.count = free_count = 0;
        for (int k = 0; k < state.rows() + state.columns(); k++) heap.place[k] = -1;
        for (int j = 0; j < state.columns(); j++) {
            distance[j] = BIG;
            if (state.row_of[j] < 0) free_columns[free_count++] = j;
        }
    }

    // Match the free row `source`, along the shortest path to a free column.
    void run(int source) {
        offset[source] = 0;
        visit(source, -BIG);
        while (heap.count > 0 && heap.least() < end_distance) {
            const double now = heap.least();
            const int node = heap.pop();
            if (node >= state.columns()) {
                expand(node - state.columns(), now);
            } else {
                settled[settled_count++] = node;
                const int i = state.row_of[node];
                offset[i] = now - state.own(i);
                visit(i, now);
            }
        }
        for (int k = 0; k < settled_count; k++) state.v[settled[k]] += distance[settled[k]] - end_distance;
        flip(source);
        forget_end();
        reset();
    }

    // Give every row of the path to `end` the column it was left by.
    void flip(int source) {
        for (int j = end, i = -1; i != source;) {
            i = before[j];
            const int next = state.column_of[i];
            state.match(i, j, state.matrix.row(i)[j]);
            j = next;
        }
    }

    void forget_end() {
        int k = 0;
        while (free_columns[k] != end) k++;
        free_columns[k] = free_columns[--free_count];
    }

    void reset() {
        for (int k = 0; k < reached_count; k++) distance[reached[k]] = BIG;
        reached_count = settled_count = 0;
        end_distance = BIG;
        end = -1;
        heap.clear();
    }
};

}  // namespace
