// The C interface: a table of problems, solved over threads. `lap.py` holds the same layout as a numpy dtype.
#pragma once

#include <cstdint>

enum Status : int32_t { SOLVED = 0, NOT_FINITE = 1, OUT_OF_MEMORY = 2 };

// One problem: min (or max) sum_i cost[i, match[i]] with rows <= columns.
struct Problem {
    const void* cost;      // [rows, columns], float or double; read in place
    int64_t stride;        // elements from one row to the next
    int64_t* match;        // [rows], the column of each row; read if `warm`
    double* row_duals;     // [rows], written
    double* column_duals;  // [columns], written; read if `warm`
    double value;          // sum_i cost[i, match[i]]
    double gap;            // |value - dual bound|, certified
    int32_t rows;
    int32_t columns;
    int32_t is_double;
    int32_t maximize;
    int32_t warm;
    int32_t status;
};
