// One problem, from start to certificate. Compiled once for each instruction set, as the function COSET_VARIANT.
//
// Everything else here has internal linkage, and no standard template is used: the linker would merge such functions
// among the variants, and might keep one that this processor cannot run.
#include "certify.h"
#include "problem.h"
#include "sample.h"
#include "solver.h"
#include "start.h"

namespace {

// The largest |entry|, or -1 if one is not finite.
template <class Matrix>
double largest_entry(const Matrix& matrix) {
    double largest = 0;
    for (int i = 0; i < matrix.rows; i++) {
        const double here = largest_size(matrix.row(i), matrix.columns);
        if (here < 0) return -1;
        largest = here > largest ? here : largest;
    }
    return largest;
}

template <class Matrix>
bool start_cold(const Matrix& matrix, Matching<Matrix>& state) {
    if (state.square()) {
        if (!first_potentials(matrix, state.v)) return false;
    } else {
        for (int j = 0; j < matrix.columns; j++) state.v[j] = 0;  // as free columns must have it in the end
    }
    start_here(state);
    return true;
}

template <class Real, bool MAXIMIZE>
Status solve(Problem& problem) {
    using Costs = Matrix<Real, MAXIMIZE>;
    const Costs matrix{static_cast<const Real*>(problem.cost), problem.stride, problem.rows, problem.columns};
    const double largest = largest_entry(matrix);
    if (largest < 0) return NOT_FINITE;
    Solver<Costs> solver(matrix, problem.column_duals);
    if (!solver.ready()) return OUT_OF_MEMORY;
    if (!problem.warm || !start_warm(solver.state, problem.match, largest))
        if (!start_cold(matrix, solver.state)) return OUT_OF_MEMORY;
    solver.finish();
    solver.center_potentials();
    certify(solver.state, problem);
    return SOLVED;
}

}  // namespace

extern "C" void COSET_VARIANT(Problem* problem) {
    if (problem->is_double)
        problem->status = problem->maximize ? solve<double, true>(*problem) : solve<double, false>(*problem);
    else
        problem->status = problem->maximize ? solve<float, true>(*problem) : solve<float, false>(*problem);
}
