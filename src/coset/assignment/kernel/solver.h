// From the first pairs to an optimal matching.
#pragma once

#include "auction.h"
#include "augment.h"
#include "center.h"
#include "reduce.h"
#include "workspace.h"

namespace {

constexpr double MANY = 0.2;  // of the rows are free: an auction pays

template <class Matrix>
class Solver {
  public:
    const Matrix matrix;
    Matching<Matrix> state;

    Solver(const Matrix& costs, double* v) : matrix(costs), state{matrix, v}, search{state} {
        reserved = space.reserve([this](Workspace& from) { allot(from); });
    }

    bool ready() const { return reserved; }

    // With few rows free, paths at once; else an auction comes first, whose prices leave little for the paths to do.
    void finish() {
        if (state.square() && state.free_count > MANY * state.rows()) auction(state, search.offset);
        reduce_rows(state);
        search.prepare();
        for (int k = 0; k < state.free_count; k++) search.run(state.free_rows[k]);
    }

    // For the next solve; the lists are of no use any more.
    void center_potentials() { center(state, search.distance); }

  private:
    Search<Matching<Matrix>> search;
    Workspace space;
    bool reserved;

    void allot(Workspace& from) {
        const size_t rows = matrix.rows, columns = matrix.columns, nodes = rows + columns;
        from.take(state.lists, rows);
        from.take(state.held, rows);
        from.take(state.column_of, rows);
        from.take(state.row_of, columns);
        from.take(state.free_rows, rows);
        from.take(search.heap.node, nodes);
        from.take(search.heap.key, nodes);
        from.take(search.heap.place, nodes);
        from.take(search.distance, columns);
        from.take(search.offset, rows);
        from.take(search.before, columns);
        from.take(search.reached, columns);
        from.take(search.settled, columns);
        from.take(search.free_columns, columns);
    }
};

}  // namespace
