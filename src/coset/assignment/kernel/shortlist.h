// The few best columns of each row, and a bound on all others.
//
// Column potentials v only fall while a problem is solved, so reduced costs c_ij - v_j only rise. A bound on the
// columns that are not on a row's list therefore stays true, and the list answers for the whole row as long as
// the answer is within the bound. Only then is the row read again.
#pragma once

#include "matrix.h"

namespace {

constexpr int LENGTH = 32;             // columns on a list
constexpr int CLASSES = 64;            // columns are dealt to classes, whose minima tell how small a small value is
constexpr int FEWEST = 18, MOST = 26;  // so many class minima, and with them somewhat more columns, go on the list

template <class Real>
struct Shortlist {
    double bound;  // c_ij - v_j of any column that is not listed is at least this
    double span;   // from the least to the largest reduced cost on the list, when it was made
    int count;
    int column[LENGTH];
    Real cost[LENGTH];
};

struct BestTwo {
    double first, second;
    int at, runner_up_at;  // places on the list, -1 if there is none
};

template <class M, class Real>
BestTwo listed_best(const Shortlist<Real>& list, const double* v) {
    BestTwo best{BIG, BIG, -1, -1};
    for (int k = 0; k < list.count; k++) {
        const double h = M::reduced(list.cost[k], v[list.column[k]]);
        if (h < best.first) {
            best = {h, best.first, k, best.at};
        } else if (h < best.second) {
            best.second = h;
            best.runner_up_at = k;
        }
    }
    return best;
}

inline int count_at_most(const double* values, int count, double limit) {
    int found = 0, k = 0;
    for (; k + LANES <= count; k += LANES) found += __builtin_popcount(at_most(load(values + k), limit));
    for (; k < count; k++) found += values[k] <= limit;
    return found;
}

// By bisection, a limit that at least `fewest` of the values do not exceed, and at most `most` if ties permit.
inline double limit_for(const double* values, int count, int fewest, int most) {
    double low = values[0], high = values[0];
    for (int k = 1; k < count; k++) {
        low = values[k] < low ? values[k] : low;
        high = values[k] > high ? values[k] : high;
    }
    for (int step = 0; step < 24 && low < high; step++) {
        const double middle = low + (high - low) / 2;
        const int found = count_at_most(values, count, middle);
        (found < fewest ? low : high) = middle;
        if (found >= fewest && found <= most) break;
    }
    return high;
}

// A value that at least FEWEST columns do not exceed, and usually not many more.
template <class M>
double short_limit(const M& matrix, int i, const double* v) {
    const auto* c = matrix.row(i);
    Lanes low[CLASSES / LANES];
    for (Lanes& lane : low) lane = all(BIG);
    int j = 0;
    for (; j + CLASSES <= matrix.columns; j += CLASSES)
        for (int k = 0; k < CLASSES / LANES; k++)
            low[k] = smaller(M::reduced(c + j + k * LANES, v + j + k * LANES), low[k]);
    double minima[CLASSES];
    std::memcpy(minima, low, sizeof minima);
    for (int k = 0; j < matrix.columns; j++, k++) {
        const double h = M::reduced(c[j], v[j]);
        minima[k] = h < minima[k] ? h : minima[k];
    }
    return limit_for(minima, matrix.columns < CLASSES ? matrix.columns : CLASSES, FEWEST, MOST);
}

// Puts columns on a list; when it is full, the worst makes room and counts for the bound.
template <class M, class Real>
struct ListBuilder {
    Shortlist<Real>& list;
    double reduced[LENGTH];
    double worst = -BIG;
    int worst_at = -1;

    void add(int j, Real cost, double h) {
        if (list.count < LENGTH) {
            put(list.count++, j, cost, h);
            if (list.count == LENGTH) find_worst();
        } else if (h < worst) {
            list.bound = worst < list.bound ? worst : list.bound;
            put(worst_at, j, cost, h);
            find_worst();
        } else {
            list.bound = h < list.bound ? h : list.bound;
        }
    }

    void put(int k, int j, Real cost, double h) {
        list.column[k] = j;
        list.cost[k] = cost;
        reduced[k] = h;
    }

    void find_worst() {
        worst_at = 0;
        for (int k = 1; k < LENGTH; k++) worst_at = reduced[k] > reduced[worst_at] ? k : worst_at;
        worst = reduced[worst_at];
    }
};

// List the best columns of row i at the potentials v: all, if they fit. Leaves out the span.
template <class M, class Real>
void fill_list(const M& matrix, int i, const double* v, Shortlist<Real>& list) {
    const Real* c = matrix.row(i);
    list.count = 0;
    if (matrix.columns <= LENGTH) {
        list.bound = BIG;
        for (int j = 0; j < matrix.columns; j++) {
            list.column[j] = j;
            list.cost[j] = c[j];
        }
        list.count = matrix.columns;
        return;
    }
    const double limit = short_limit(matrix, i, v);
    list.bound = limit;
    ListBuilder<M, Real> builder{list};
    // Equal rows start at different columns, so that ties do not give all of them one list.
    const int start = int(int64_t(i) * LANES % matrix.columns);
    const int ranges[2][2] = {{start, matrix.columns}, {0, start}};
    for (const auto& range : ranges) {
        int j = range[0];
        for (; j + LANES <= range[1]; j += LANES) {
            for (unsigned bits = at_most(M::reduced(c + j, v + j), limit); bits; bits &= bits - 1) {
                const int k = j + __builtin_ctz(bits);
                builder.add(k, c[k], M::reduced(c[k], v[k]));
            }
        }
        for (; j < range[1]; j++) {
            const double h = M::reduced(c[j], v[j]);
            if (h <= limit) builder.add(j, c[j], h);
        }
    }
}

template <class M, class Real>
void make_list(const M& matrix, int i, const double* v, Shortlist<Real>& list) {
    fill_list(matrix, i, v, list);
    double low = BIG, high = -BIG;
    for (int k = 0; k < list.count; k++) {
        const double h = M::reduced(list.cost[k], v[list.column[k]]);
        low = h < low ? h : low;
        high = h > high ? h : high;
    }
    list.span = high - low;
}

}  // namespace
