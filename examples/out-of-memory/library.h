// A library that uses CUDA inside: it keeps a workspace of 64 MiB for each batch size that it has seen.
#pragma once

#include <cuda_runtime.h>
#include <map>

namespace library {

inline std::map<int, void *> workspaces;

inline int score(int batch) {
    if (workspaces.count(batch) == 0) {
        void *workspace = nullptr;
        if (cudaMalloc(&workspace, 64 * 1024 * 1024) != cudaSuccess) return -1;
        workspaces[batch] = workspace;
    }
    return batch;
}

inline void shut_down() {
    for (auto &entry : workspaces) cudaFree(entry.second);
    workspaces.clear();
}

} // namespace library
