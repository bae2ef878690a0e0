// vram.hpp: GPU memory with owners, for C++17 and the CUDA runtime API on Linux. Nothing to link but CUDA.
//
//     vram::DeviceArray<float> weights(count);             // cudaMalloc; throws vram::OutOfMemory
//     vram::PooledArray<float> batch(count, stream);       // cudaMallocAsync, freed on the same stream
//     vram::ManagedArray<int> shared(count);               // cudaMallocManaged
//     vram::PinnedArray<float> staging(count);             // cudaHostAlloc
//     kernel<<<blocks, threads>>>(weights.view());         // a pointer and a size; .data() is the pointer
//     VRAM_CHECK(cudaDeviceSynchronize());                 // throws vram::Error with the error, file and line
//     vram::Scope scope("load");                           // says at its end what was not freed
//     vram::trim_pools();                                  // what cudaMallocAsync's pools keep unused
//     vram::mark("epoch 3");                               // into the trace that `vram run` records, if any
//     catch (const vram::OutOfMemory &error) { std::cerr << error.what() << '\n' << vram::explain_oom(error); }
// `g++ $(vram --include) program.cpp -lcudart` and `nvcc $(vram --include) program.cu` find this file.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <type_traits>
#include <unistd.h>
#include <utility>

#ifdef __CUDACC__
#define VRAM_HOST_DEVICE __host__ __device__
#else
#define VRAM_HOST_DEVICE
#endif

namespace vram {

// A CUDA call that failed. what() has the call, the error's name and its text.
struct Error : std::runtime_error {
    cudaError_t code;
    Error(const std::string &text, cudaError_t error) : std::runtime_error(text), code(error) {}
};

// What cudaMemGetInfo says of a device: the whole GPU, other processes included. `total` is 0 where it cannot say.
struct DeviceMemory {
    int device = -1;
    std::size_t free = 0, total = 0;
};

// cudaErrorMemoryAllocation, with what was requested (0: unknown) and what was free when it failed.
struct OutOfMemory : Error {
    std::size_t requested;
    DeviceMemory memory;
    OutOfMemory(const std::string &text, std::size_t nbytes, DeviceMemory found)
        : Error(text, cudaErrorMemoryAllocation), requested(nbytes), memory(found) {}
};

namespace detail {
template <class Bytes> std::string size_text(Bytes nbytes) {
    const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    auto value = static_cast<double>(nbytes);
    int unit = 0;
    for (; (value >= 1024 || value <= -1024) && unit < 4; unit++) value /= 1024;
    char text[32];
    std::snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

// Of the current device. It makes the device's context where there is none, as every allocation does.
inline DeviceMemory measure() noexcept {
    DeviceMemory memory;
    if (cudaGetDevice(&memory.device) != cudaSuccess || cudaMemGetInfo(&memory.free, &memory.total) != cudaSuccess)
        memory.free = memory.total = 0;
    return memory;
}

// The GPU's PCI address: its number depends on CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
inline std::string pci_address(int device) {
    char text[32] = "";
    return device >= 0 && cudaDeviceGetPCIBusId(text, sizeof text, device) == cudaSuccess ? text : "";
}

[[noreturn]] inline void fail(cudaError_t code, std::string what, std::size_t requested, const std::string &where) {
    what += std::string(" failed: ") + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")";
    bool is_memory = code == cudaErrorMemoryAllocation;
    DeviceMemory memory = is_memory ? measure() : DeviceMemory{};
    if (requested) what += ": requested " + std::to_string(requested) + " bytes (" + size_text(requested) + ")";
    if (memory.total) {
        what += (requested ? ", " : ": ") + std::to_string(memory.free) + " of " + std::to_string(memory.total);
        what += " bytes free on device " + std::to_string(memory.device) + " (" + pci_address(memory.device) + ")";
    }
    cudaGetLastError(); // it is in the exception now: a later check of a kernel launch must not meet it
    if (is_memory) throw OutOfMemory(what + where, requested, memory);
    throw Error(what + where, code);
}

template <class Function> Function *find(void *library, const char *name) noexcept {
    return library ? reinterpret_cast<Function *>(dlsym(library, name)) : nullptr;
}

// Driver calls that the runtime has no name for. The runtime has loaded the driver already.
struct Driver {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*current)(void **) = find<int(void **)>(library, "cuCtxGetCurrent");
    int (*push)(void *) = find<int(void *)>(library, "cuCtxPushCurrent_v2");
    int (*pop)(void **) = find<int(void **)>(library, "cuCtxPopCurrent_v2");
    int (*id)(void *, unsigned long long *) = find<int(void *, unsigned long long *)>(library, "cuCtxGetId");
    int (*state)(int, unsigned *, int *) = find<int(int, unsigned *, int *)>(library, "cuDevicePrimaryCtxGetState");

    bool is_whole() const noexcept { return current && push && pop && id && state; }
    bool is_active(int device) const noexcept {
        unsigned flags = 0;
        int active = 0;
        return !state || (state(device, &flags, &active) == 0 && active != 0);
    }
};

inline const Driver &driver() noexcept {
    static const Driver calls;
    return calls;
}

// The context that memory was allocated in.
struct Origin {
    int device = -1;
    void *context = nullptr;
    unsigned long long id = 0; // 0: unknown, with a driver before CUDA 12.0

    static Origin current() noexcept {
        Origin origin;
        const Driver &cu = driver();
        if (cudaGetDevice(&origin.device) != cudaSuccess) origin.device = -1;
        if (!cu.is_whole() || cu.current(&origin.context) || cu.id(origin.context, &origin.id)) origin.id = 0;
        return origin;
    }
};

// Make *call* in the origin's context and leave the thread's context and device as they were. A context that was
// reset has freed its memory, and another owner may have the same address by now: then nothing is called, and the
// answer is cudaErrorContextIsDestroyed. Choosing the device by cudaSetDevice would make its context anew.
template <class Call> cudaError_t within(const Origin &origin, const Call &call) noexcept {
    const Driver &cu = driver();
    if (!origin.id || !cu.is_whole()) {
        int before = -1;
        cudaError_t code = cudaGetDevice(&before);
        if (code == cudaSuccess && before != origin.device) code = cudaSetDevice(origin.device);
        if (code == cudaSuccess) code = call();
        if (before >= 0 && before != origin.device) cudaSetDevice(before);
        return code;
    }
    void *current = nullptr;
    unsigned long long id = 0;
    // The driver refuses at the end of the process, and in a forked child, which owns nothing.
    if (cu.current(&current) != 0) return cudaErrorContextIsDestroyed;
    bool is_here = current == origin.context;
    bool is_alive = (is_here || cu.is_active(origin.device)) && cu.id(origin.context, &id) == 0 && id == origin.id;
    if (!is_alive || (!is_here && cu.push(origin.context) != 0)) return cudaErrorContextIsDestroyed;
    cudaError_t code = call();
    if (!is_here) cu.pop(&current);
    return code;
}

// Bytes of device memory that this header's arrays have on a device.
inline std::atomic<std::int64_t> &owned_bytes(int device) noexcept {
    static std::atomic<std::int64_t> bytes[64];
    return bytes[static_cast<unsigned>(device) % 64];
}

struct Device {
    static constexpr const char *name = "cudaMalloc";
    static constexpr bool counts = true, ends_with_context = true;
    cudaError_t allocate(void **pointer, std::size_t nbytes) noexcept { return cudaMalloc(pointer, nbytes); }
    cudaError_t free(void *pointer) noexcept { return cudaFree(pointer); }
};

struct Pooled {
    static constexpr const char *name = "cudaMallocAsync";
    static constexpr bool counts = true, ends_with_context = false; // a pool outlives a reset
    cudaStream_t stream;
    cudaMemPool_t pool; // nullptr: the device's current pool
    Pooled(cudaStream_t on = nullptr, cudaMemPool_t from = nullptr) noexcept : stream(on), pool(from) {}
    cudaError_t allocate(void **pointer, std::size_t nbytes) noexcept {
        return pool ? cudaMallocFromPoolAsync(pointer, nbytes, pool, stream) : cudaMallocAsync(pointer, nbytes, stream);
    }
    cudaError_t free(void *pointer) noexcept { return cudaFreeAsync(pointer, stream); }
};

struct Managed {
    static constexpr const char *name = "cudaMallocManaged";
    static constexpr bool counts = false, ends_with_context = true;
    unsigned flags;
    Managed(unsigned chosen = cudaMemAttachGlobal) noexcept : flags(chosen) {}
    cudaError_t allocate(void **pointer, std::size_t nbytes) noexcept {
        return cudaMallocManaged(pointer, nbytes, flags);
    }
    cudaError_t free(void *pointer) noexcept { return cudaFree(pointer); }
};

struct Pinned {
    static constexpr const char *name = "cudaHostAlloc";
    static constexpr bool counts = false, ends_with_context = true;
    unsigned flags;
    Pinned(unsigned chosen = cudaHostAllocDefault) noexcept : flags(chosen) {}
    cudaError_t allocate(void **pointer, std::size_t nbytes) noexcept { return cudaHostAlloc(pointer, nbytes, flags); }
    cudaError_t free(void *pointer) noexcept { return cudaFreeHost(pointer); }
};

inline std::int64_t pool_bytes(cudaMemPool_t pool, cudaMemPoolAttr attribute) noexcept {
    std::uint64_t nbytes = 0;
    return cudaMemPoolGetAttribute(pool, attribute, &nbytes) == cudaSuccess ? static_cast<std::int64_t>(nbytes) : 0;
}

// The device's default pool and the one that it allocates from; nullptr where it has none.
inline std::array<cudaMemPool_t, 2> pools(int device) noexcept {
    std::array<cudaMemPool_t, 2> found = {};
    if (cudaDeviceGetDefaultMemPool(&found[0], device) || cudaDeviceGetMemPool(&found[1], device))
        cudaGetLastError(); // not supported here: no error of the program's
    return found;
}

// What the device's default pool keeps and no array uses.
inline std::int64_t unused_in_pool(int device) noexcept {
    cudaMemPool_t pool = pools(device)[0];
    if (!pool) return 0;
    return pool_bytes(pool, cudaMemPoolAttrReservedMemCurrent) - pool_bytes(pool, cudaMemPoolAttrUsedMemCurrent);
}

// Start *words* with these files as its input and output, and with signals as a shell would start it.
inline int spawn(pid_t &child, const char *const *words, int input, int output) noexcept {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, reset;
    sigemptyset(&none);
    sigfillset(&reset);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &reset);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int failed = posix_spawnp(&child, words[0], &files, &attributes, const_cast<char *const *>(words), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

// Through a handle: where the program reaps all its children, the number may be another process's by now.
inline void end_child(pid_t child) noexcept {
    int handle = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
    bool is_ours = handle >= 0 && waitpid(child, nullptr, WNOHANG) == 0;
    if (is_ours) syscall(SYS_pidfd_send_signal, handle, SIGKILL, nullptr, 0);
    pollfd ending = {handle, POLLIN, 0};
    if (is_ours && poll(&ending, 1, 1000) > 0) waitpid(child, nullptr, WNOHANG);
    close(handle);
}

} // namespace detail

inline void check(cudaError_t code, const char *call, const char *file, int line) {
    if (code != cudaSuccess) detail::fail(code, call, 0, std::string(" at ") + file + ":" + std::to_string(line));
}

#define VRAM_CHECK(call) ::vram::check((call), #call, __FILE__, __LINE__)

// A pointer and a size, to be passed by value, also to kernels. It owns nothing.
template <class T> struct View {
    T *data = nullptr;
    std::size_t size = 0;
    VRAM_HOST_DEVICE T &operator[](std::size_t index) const { return data[index]; }
    VRAM_HOST_DEVICE T *begin() const { return data; }
    VRAM_HOST_DEVICE T *end() const { return data + size; }
};

// An array that is freed at the end of its scope, on the device that it was allocated on. Its elements are not
// initialized. Move-only; like other containers, one object is for one thread at a time.
template <class T, class Kind> class Array {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                  "no constructor or destructor runs on the device");

  public:
    Array() noexcept = default;
    // *kind*: flags of ManagedArray and PinnedArray; of PooledArray a stream, or {stream, pool}.
    explicit Array(std::size_t count, Kind kind = {}) : kind_(kind), size_(count) {
        if (count > SIZE_MAX / sizeof(T)) detail::fail(cudaErrorMemoryAllocation, Kind::name, SIZE_MAX, "");
        void *pointer = nullptr;
        cudaError_t code = count ? kind_.allocate(&pointer, size_bytes()) : cudaSuccess;
        if (code != cudaSuccess) detail::fail(code, Kind::name, size_bytes(), "");
        data_ = static_cast<T *>(pointer);
        if (pointer) origin_ = detail::Origin::current();
        count_owned(1);
    }
    Array(Array &&other) noexcept { swap(other); }
    Array &operator=(Array &&other) noexcept {
        Array(std::move(other)).swap(*this);
        return *this;
    }
    // Never throws. Errors are dropped: most come from earlier work, and its next call reports them too.
    ~Array() {
        if (data_ && give_back() != cudaSuccess) cudaGetLastError();
    }
    T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    explicit operator bool() const noexcept { return data_ != nullptr; }
    View<T> view() const noexcept { return {data_, size_}; }
    // The device that it was allocated on; -1 for an empty array.
    int device() const noexcept { return origin_.device; }
    // Now instead of at the end of the scope; throws where that fails.
    void free() {
        cudaError_t code = data_ ? give_back() : cudaSuccess;
        if (code != cudaSuccess) detail::fail(code, "freeing memory", 0, std::string(" of ") + Kind::name);
    }
    // PooledArray: free it on another stream than it was allocated on. Streams must live until their memory is freed.
    void free_on(cudaStream_t stream) {
        kind_.stream = stream;
        free();
    }
    // As of std::unique_ptr: the caller has the pointer, and frees it.
    [[nodiscard]] T *release() noexcept {
        count_owned(-1);
        size_ = 0;
        origin_ = {};
        return std::exchange(data_, nullptr);
    }
    void swap(Array &other) noexcept {
        std::swap(kind_, other.kind_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(origin_, other.origin_);
    }

  private:
    void count_owned(int sign) noexcept {
        if (Kind::counts && data_)
            detail::owned_bytes(origin_.device) += sign * static_cast<std::int64_t>(size_bytes());
    }
    cudaError_t give_back() noexcept {
        cudaError_t code = detail::within(origin_, [this] { return kind_.free(data_); });
        static_cast<void>(release());
        return code == cudaErrorContextIsDestroyed && Kind::ends_with_context ? cudaSuccess : code;
    }

    Kind kind_{};
    T *data_ = nullptr;
    std::size_t size_ = 0;
    detail::Origin origin_;
};

template <class T> using DeviceArray = Array<T, detail::Device>;
template <class T> using PooledArray = Array<T, detail::Pooled>;
template <class T> using ManagedArray = Array<T, detail::Managed>;
template <class T> using PinnedArray = Array<T, detail::Pinned>;

// Free what the default and current pools of this process's devices keep unused, down to *keep* bytes each; return how
// much that was. Memory whose cudaFreeAsync has not run yet stays: synchronize the stream first.
inline std::int64_t trim_pools(std::size_t keep = 0) {
    int count = 0;
    std::int64_t freed = 0;
    VRAM_CHECK(cudaGetDeviceCount(&count));
    for (int device = 0; device < count; device++) {
        if (!detail::driver().is_active(device)) continue; // none is made for it
        for (cudaMemPool_t pool : detail::pools(device)) {
            std::int64_t before = pool ? detail::pool_bytes(pool, cudaMemPoolAttrReservedMemCurrent) : 0;
            if (before) VRAM_CHECK(cudaMemPoolTrimTo(pool, keep));
            if (before) freed += before - detail::pool_bytes(pool, cudaMemPoolAttrReservedMemCurrent);
        }
    }
    return freed;
}

// What a scope left. `not_freed` is the whole GPU's: what other processes allocated meanwhile is in it. `owned`, a
// part of it, is what this header's arrays hold; `in_pool` is what the default pool keeps (not in `not_freed`).
struct ScopeReport {
    std::string name;
    int device = -1;
    std::int64_t not_freed = 0, owned = 0, in_pool = 0;
    cudaError_t code = cudaSuccess; // why it could not be measured

    std::string text() const {
        std::string text = "vram: scope \"" + name + "\": ";
        if (code != cudaSuccess) return text + "not measured: " + cudaGetErrorName(code) + "\n";
        text += detail::size_text(not_freed) + " not freed on device " + std::to_string(device) + ", ";
        text += detail::size_text(owned) + " by arrays of vram.hpp";
        if (in_pool > 0) text += "; its pool keeps " + detail::size_text(in_pool) + ": vram::trim_pools()";
        return text + "\n";
    }
};

// Measures the current device at its begin and its end, where it waits for the device's work (so not while a graph
// is captured). Its destructor prints the report to *to* if something was not freed; end() returns it instead.
class Scope {
  public:
    explicit Scope(std::string name, std::FILE *to = stderr) : to_(to) {
        report_.name = std::move(name);
        before_ = detail::measure(); // makes the context, which is not the scope's
        report_.device = before_.device;
        if (!before_.total) report_.code = cudaGetLastError();
        origin_ = detail::Origin::current();
        report_.owned = -detail::owned_bytes(report_.device);
        report_.in_pool = -detail::unused_in_pool(before_.device);
    }
    Scope &operator=(Scope &&) = delete; // nor copied
    ~Scope() {
        try {
            if (is_over_) return;
            ScopeReport report = end();
            bool is_clean = report.code == cudaSuccess && report.not_freed <= 0 && report.owned <= 0;
            if (to_ && !is_clean) std::fputs(report.text().c_str(), to_);
        } catch (...) { // no memory for the text: a destructor must not throw
        }
    }
    ScopeReport end() {
        if (std::exchange(is_over_, true) || report_.code != cudaSuccess) return report_;
        DeviceMemory after;
        report_.code = detail::within(origin_, [&after] {
            cudaError_t code = cudaDeviceSynchronize();
            if (code == cudaSuccess) after = detail::measure();
            return code == cudaSuccess && !after.total ? cudaGetLastError() : code;
        });
        report_.owned += detail::owned_bytes(report_.device);
        report_.in_pool += detail::unused_in_pool(report_.device);
        auto lost = static_cast<std::int64_t>(before_.free) - static_cast<std::int64_t>(after.free);
        if (report_.code == cudaSuccess) report_.not_freed = lost - report_.in_pool;
        return report_;
    }

  private:
    std::FILE *to_;
    ScopeReport report_;
    DeviceMemory before_;
    detail::Origin origin_;
    bool is_over_ = false;
};

// Write *text* into the trace of this process (`vram run`, `vram attach`); return whether one is being recorded.
inline bool mark(const char *text) noexcept {
    static std::atomic<int (*)(const char *)> record{nullptr};
    static std::atomic<std::int64_t> looked_at{-50};
    auto found = record.load();
    if (!found) {
        // Asking the loader takes some 80 µs where nothing is recorded: not more often than every 50 ms.
        std::int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::milliseconds(1);
        if (now - looked_at < 50) return false;
        looked_at = now;
        const char *paths[] = {std::getenv("CUDA_INJECTION64_PATH"), "libvramtracer.so"};
        for (const char *path : paths) {
            void *library = found || !path || !*path ? nullptr : dlopen(path, RTLD_NOLOAD | RTLD_NOW);
            if (library) found = detail::find<int(const char *)>(library, "vram_tracer_mark");
        }
        record = found;
    }
    return found && found(text) == 0;
}

// Let `vram oom --live` say which kind of out-of-memory *message* is and who holds the GPU's memory now: its text, or
// "" where it is not found or does not answer by the deadline. No shell is used. *gpu* is as for `vram oom --gpu`.
inline std::string explain_oom(const std::string &message, const std::string &gpu = "",
                               std::chrono::milliseconds deadline = std::chrono::seconds(10),
                               const char *command = "vram") {
    const char *words[] = {command, "oom", "--live", gpu.empty() ? nullptr : "--gpu", gpu.c_str(), nullptr};
    std::string text;
    pid_t child = -1;
    // The message is a file, not a pipe: writing to a child that has ended would raise SIGPIPE.
    int input = memfd_create("vram-oom", MFD_CLOEXEC), output[2] = {-1, -1};
    bool is_ready = write(input, message.data(), message.size()) == static_cast<ssize_t>(message.size()) &&
                    lseek(input, 0, SEEK_SET) == 0 && pipe2(output, O_CLOEXEC) == 0 &&
                    detail::spawn(child, words, input, output[1]) == 0;
    close(input);
    close(output[1]);
    ssize_t got = 1;
    for (auto end = std::chrono::steady_clock::now() + deadline; is_ready && got > 0 && text.size() < 1000000;) {
        auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
        pollfd waiting = {output[0], POLLIN, 0};
        int ready = poll(&waiting, 1, static_cast<int>(left.count() > 0 ? left.count() : 0));
        if (ready < 0 && errno == EINTR) continue;
        char part[4096];
        got = ready > 0 ? read(output[0], part, sizeof part) : -1;
        if (got > 0) text.append(part, static_cast<std::size_t>(got));
    }
    close(output[0]);
    if (is_ready) detail::end_child(child);
    return got == 0 ? text : "";
}

inline std::string explain_oom(const OutOfMemory &error, std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    return explain_oom(error.what(), detail::pci_address(error.memory.device), limit);
}

} // namespace vram
