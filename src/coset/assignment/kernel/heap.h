// A binary heap of numbered nodes, each at most once, whose keys can be lowered.
#pragma once

namespace {

struct Heap {
    int* node;    // [capacity], in heap order
    double* key;  // [capacity], of the node beside it
    int* place;   // [nodes], where a node is, -1 if it is not here
    int count;

    double least() const { return key[0]; }

    void lower(int which, double to) {
        int at = place[which] < 0 ? count++ : place[which];
        for (; at > 0 && key[(at - 1) / 2] > to; at = (at - 1) / 2) put(at, node[(at - 1) / 2], key[(at - 1) / 2]);
        put(at, which, to);
    }

    int pop() {
        const int top = node[0], last = node[--count];
        const double to = key[count];
        int at = 0;
        for (int child; (child = 2 * at + 1) < count; at = child) {
            if (child + 1 < count && key[child + 1] < key[child]) child++;
            if (key[child] >= to) break;
            put(at, node[child], key[child]);
        }
        place[top] = -1;
        if (count > 0) put(at, last, to);
        return top;
    }

    void clear() {
        while (count > 0) place[node[--count]] = -1;
    }

  private:
    void put(int at, int which, double to) {
        node[at] = which;
        key[at] = to;
        place[which] = at;
    }
};

}  // namespace
