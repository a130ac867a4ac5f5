// One block of memory, handed out in pieces that begin on a cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

class Workspace {
  public:
    Workspace() = default;
    ~Workspace() { std::free(memory); }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    // `allot` takes all pieces: once to learn how much they need, and once from the block. False if there is none.
    template <class Allot>
    bool reserve(const Allot& allot) {
        allot(*this);
        memory = std::malloc(used + LINE);
        used = 0;
        if (memory) allot(*this);
        return memory;
    }

    template <class T>
    void take(T*& piece, size_t count) {
        const uintptr_t base = (reinterpret_cast<uintptr_t>(memory) + LINE - 1) / LINE * LINE;
        piece = reinterpret_cast<T*>(base + used);
        used += (count * sizeof(T) + LINE - 1) / LINE * LINE;
    }

  private:
    static constexpr size_t LINE = 64;
    void* memory = nullptr;
    size_t used = 0;
};

}  // namespace
