// Programs that use vram.hpp, one function each, chosen by name: test_header.py runs them on the virtual GPU. A check
// that does not hold ends the program with its line.
#include "vram.hpp"

#include "other_unit.hpp"
#include <csignal>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            std::fflush(nullptr); \
            std::_Exit(1); \
        } \
    } while (0)

constexpr std::size_t MIB = 1 << 20;

// For places that are not reached.
static bool was_thrown() {
    return false;
}

static std::size_t free_bytes() {
    std::size_t found = 0, total = 0;
    VRAM_CHECK(cudaMemGetInfo(&found, &total));
    return found;
}

static bool has_context(int device) {
    return vram::detail::driver().is_active(device);
}

static std::int64_t owned(int device = 0) {
    return vram::detail::owned_bytes(device);
}

// ---- owners ----

static void every_owner() {
    const std::size_t before = free_bytes();
    {
        vram::DeviceArray<float> device(MIB);
        CHECK(device && device.size() == MIB && device.size_bytes() == 4 * MIB && device.device() == 0);
        CHECK(device.view().data == device.data() && device.view().size == MIB);
        CHECK(before - free_bytes() == 4 * MIB);
        vram::PinnedArray<int> pinned(100, cudaHostAllocPortable);
        for (int &value : pinned.view()) value = 7;
        VRAM_CHECK(cudaMemcpy(device.data(), pinned.data(), pinned.size_bytes(), cudaMemcpyDefault));
        vram::ManagedArray<int> managed(100, cudaMemAttachGlobal);
        VRAM_CHECK(cudaMemcpy(managed.data(), device.data(), managed.size_bytes(), cudaMemcpyDefault));
        CHECK(managed.view()[0] == 7 && managed.view()[99] == 7);
        vram::PooledArray<double> pooled(100);
        VRAM_CHECK(cudaMemset(pooled.data(), 0, pooled.size_bytes()));
        CHECK(owned() == static_cast<std::int64_t>(4 * MIB + 800));
    }
    VRAM_CHECK(cudaDeviceSynchronize());
    vram::trim_pools();
    CHECK(before - free_bytes() < 130 * MIB); // managed memory was written by a copy: a reserve of 128 MiB
    CHECK(owned() == 0);
}

static void moves() {
    using Array = vram::DeviceArray<char>;
    static_assert(!std::is_copy_constructible_v<Array> && !std::is_copy_assignable_v<Array>);
    static_assert(std::is_nothrow_move_constructible_v<Array> && std::is_nothrow_move_assignable_v<Array>);
    static_assert(!std::is_convertible_v<std::size_t, Array>);
    static_assert(!std::is_copy_constructible_v<vram::Scope> && !std::is_copy_assignable_v<vram::Scope>);
    const std::size_t before = free_bytes();
    Array first(2 * MIB);
    char *const pointer = first.data();
    Array second(std::move(first));
    CHECK(!first && first.size() == 0 && first.device() == -1 && second.data() == pointer);
    Array third(4 * MIB);
    third = std::move(second); // frees the 4 MiB
    CHECK(third.data() == pointer && third.size() == 2 * MIB && before - free_bytes() == 2 * MIB);
    Array &same = third;
    third = std::move(same);
    CHECK(third.data() == pointer);
    std::vector<Array> many;
    many.push_back(std::move(third));
    for (int i = 0; i < 9; i++) many.emplace_back(2 * MIB);
    CHECK(before - free_bytes() == 20 * MIB);
    std::swap(many.front(), many.back());
    CHECK(many.back().data() == pointer);
    many.erase(many.begin(), many.begin() + 9);
    CHECK(before - free_bytes() == 2 * MIB);
    char *const mine = many.back().release();
    many.clear();
    CHECK(mine == pointer && before - free_bytes() == 2 * MIB && owned() == 0);
    VRAM_CHECK(cudaFree(mine));
    Array freed(2 * MIB);
    freed.free();
    freed.free();
    CHECK(!freed && before == free_bytes());
}

static void empty() {
    vram::DeviceArray<int> nothing, zero(0);
    vram::PooledArray<int> pooled(0);
    CHECK(!nothing && !zero && zero.size() == 0 && zero.data() == nullptr && zero.release() == nullptr);
    CHECK(zero.view().begin() == zero.view().end());
    nothing.free();
    pooled.free();
    CHECK(!has_context(0)); // none of it needs one
}

template <class Array> static vram::OutOfMemory failure(std::size_t count) {
    try {
        Array array(count);
    } catch (const vram::OutOfMemory &error) {
        return error;
    }
    CHECK(was_thrown());
    std::abort();
}

static void no_room() {
    const std::size_t before = free_bytes();
    auto error = failure<vram::DeviceArray<double>>(std::size_t(1) << 40);
    CHECK(error.code == cudaErrorMemoryAllocation && error.requested == std::size_t(8) << 40);
    CHECK(error.memory.free == before && error.memory.total > before && error.memory.device == 0);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    std::cout << error.what() << "\n";
    std::cout << failure<vram::PooledArray<char>>(std::size_t(1) << 40).what() << "\n";
    std::cout << failure<vram::DeviceArray<double>>(SIZE_MAX / 2).what() << "\n";
    try {
        VRAM_CHECK(cudaMalloc(nullptr, 1));
    } catch (const vram::Error &other) {
        CHECK(other.code == cudaErrorInvalidValue);
        CHECK(std::string(other.what()).find("checks.cpp:") != std::string::npos);
        std::cout << other.what() << "\n";
    }
    try {
        VRAM_CHECK(cudaErrorMemoryAllocation);
    } catch (const vram::OutOfMemory &other) {
        CHECK(other.requested == 0 && other.memory.total != 0);
    }
    CHECK(owned() == 0 && free_bytes() == before);
}

struct Model {
    vram::DeviceArray<char> weights{4 * MIB};
    vram::PooledArray<char> state{MIB};
    vram::DeviceArray<char> cache{4 * MIB};
    explicit Model(bool throws) {
        if (throws) throw std::runtime_error("a bad model");
    }
};

// With cuMemAlloc failing the second time, and without.
static void failing_constructors() {
    const std::size_t before = free_bytes();
    bool failed = false;
    try {
        Model model(false);
    } catch (const vram::OutOfMemory &) {
        failed = true;
    }
    CHECK(failed);
    try {
        Model model(true);
        CHECK(was_thrown());
    } catch (const std::runtime_error &error) {
        CHECK(std::string(error.what()) == "a bad model");
    }
    VRAM_CHECK(cudaDeviceSynchronize());
    vram::trim_pools();
    CHECK(owned() == 0 && before == free_bytes());
}

// Under a fault: every free fails.
static void failing_free() {
    {
        vram::DeviceArray<char> silent(MIB);
    }
    CHECK(cudaPeekAtLastError() == cudaSuccess && owned() == 0);
    vram::DeviceArray<char> loud(MIB);
    try {
        loud.free();
        CHECK(was_thrown());
    } catch (const vram::Error &error) {
        CHECK(error.code == cudaErrorUnknown && !loud);
    }
}

// Under a fault: the first cudaMemset breaks the context, as an illegal address in a kernel does.
static void broken_context() {
    vram::DeviceArray<char> device(MIB);
    vram::PooledArray<char> pooled(MIB);
    vram::PinnedArray<char> pinned(MIB);
    vram::Scope scope("broken");
    CHECK(cudaMemset(device.data(), 0, MIB) == cudaErrorIllegalAddress);
    CHECK(scope.end().code == cudaErrorIllegalAddress);
    try {
        vram::DeviceArray<char> next(MIB);
        CHECK(was_thrown());
    } catch (const vram::OutOfMemory &) {
        CHECK(was_thrown());
    } catch (const vram::Error &error) {
        CHECK(error.code == cudaErrorIllegalAddress);
    }
}

// ---- contexts, threads, devices ----

static void reset() {
    {
        vram::DeviceArray<char> device(2 * MIB);
        vram::ManagedArray<char> managed(MIB);
        vram::PinnedArray<char> pinned(MIB);
        vram::Scope scope("reset", nullptr);
        VRAM_CHECK(cudaDeviceReset());
        CHECK(scope.end().code == cudaErrorContextIsDestroyed);
        device.free(); // it is free: no error
    }
    CHECK(!has_context(0)); // and none was made to free what is free
    CHECK(owned() == 0);

    // A new context gives the same address to somebody else.
    vram::DeviceArray<char> old(2 * MIB);
    char *const address = old.data();
    VRAM_CHECK(cudaDeviceReset());
    vram::DeviceArray<char> fresh(2 * MIB);
    // A real driver may choose another address; then the old one must be left alone all the same.
    CHECK(fresh.data() == address || !std::getenv("VRAM_VIRTUAL_GPU"));
    const std::size_t before = free_bytes();
    old.free();
    CHECK(free_bytes() == before);
    VRAM_CHECK(cudaMemset(fresh.data(), 1, fresh.size()));
    std::thread([] { VRAM_CHECK(cudaDeviceReset()); }).join();
    CHECK(has_context(0)); // a thread without a context resets none
    std::thread([] {
        VRAM_CHECK(cudaSetDevice(0));
        VRAM_CHECK(cudaDeviceReset());
    }).join(); // by another thread
    CHECK(!has_context(0));
    fresh.free();
    CHECK(!has_context(0));
}

static void threads() {
    const std::size_t before = free_bytes();
    std::vector<std::thread> all;
    std::vector<vram::DeviceArray<char>> left(8);
    for (std::size_t number = 0; number < left.size(); number++)
        all.emplace_back([&left, number] {
            for (int round = 0; round < 50; round++) {
                vram::DeviceArray<char> device(4096);
                vram::PooledArray<char> pooled(4096);
                left[number] = std::move(device);
            }
        });
    for (std::thread &each : all) each.join();
    CHECK(owned() == 8 * 4096);
    std::thread([&left] { left.clear(); }).join(); // another thread than the one that allocated
    VRAM_CHECK(cudaDeviceSynchronize());
    vram::trim_pools();
    CHECK(owned() == 0 && before == free_bytes());
}

static int current_device() {
    int device = -1;
    VRAM_CHECK(cudaGetDevice(&device));
    return device;
}

static void two_gpus() {
    VRAM_CHECK(cudaSetDevice(1));
    auto second = std::make_unique<vram::DeviceArray<char>>(4 * MIB);
    auto pooled = std::make_unique<vram::PooledArray<char>>(4 * MIB);
    CHECK(second->device() == 1 && owned(1) == static_cast<std::int64_t>(8 * MIB));
    CHECK(!has_context(0));
    // A thread whose device is 0 and that has used none: freeing makes no context there.
    std::thread([&second] {
        CHECK(current_device() == 0);
        second.reset();
        CHECK(current_device() == 0);
    }).join();
    CHECK(!has_context(0) && owned(1) == static_cast<std::int64_t>(4 * MIB));
    const std::size_t before = free_bytes();
    VRAM_CHECK(cudaSetDevice(0));
    vram::DeviceArray<char> first(2 * MIB);
    vram::Scope scope("on 0", nullptr);
    pooled.reset();
    CHECK(current_device() == 0 && owned(1) == 0);
    VRAM_CHECK(cudaSetDevice(1));
    VRAM_CHECK(cudaDeviceSynchronize());
    vram::DeviceArray<char> other(2 * MIB);
    const vram::ScopeReport report = scope.end(); // measures the device that it began on
    CHECK(report.device == 0 && report.not_freed == 0 && report.owned == 0 && current_device() == 1);
    other.free();
    CHECK(free_bytes() - before == 32 * MIB); // the pool's piece: its threshold is 0
}

static void own_context() {
    auto create =
        vram::detail::find<int(void **, void *, unsigned, int)>(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxCreate_v4");
    auto set = vram::detail::find<int(void *)>(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxSetCurrent");
    auto destroy = vram::detail::find<int(void *)>(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxDestroy_v2");
    const std::size_t before = free_bytes(); // and the primary context
    void *context = nullptr, *current = nullptr;
    CHECK(create(&context, nullptr, 0, 0) == 0);
    const std::size_t with_both = free_bytes();
    auto in_it = std::make_unique<vram::DeviceArray<char>>(4 * MIB),
         lost = std::make_unique<vram::DeviceArray<char>>(MIB);
    std::thread([&in_it] {
        VRAM_CHECK(cudaSetDevice(0)); // the primary one
        in_it.reset();
    }).join();
    CHECK(with_both - free_bytes() == 2 * MIB); // the other one's
    CHECK(vram::detail::driver().current(&current) == 0 && current == context);
    CHECK(destroy(context) == 0 && set(nullptr) == 0);
    lost.reset();
    CHECK(before == free_bytes());
}

static vram::DeviceArray<char> at_exit;

static void end_of_the_process() {
    at_exit = vram::DeviceArray<char>(MIB);
    static vram::PooledArray<char> pooled(MIB);
    static vram::Scope scope("process", nullptr);
}

static void forked() {
    auto device = std::make_unique<vram::DeviceArray<char>>(2 * MIB);
    const std::size_t before = free_bytes();
    const pid_t child = fork();
    if (child == 0) {
        device.reset();
        std::_Exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(free_bytes() == before);
    VRAM_CHECK(cudaMemset(device->data(), 1, device->size()));
    device->free();
    CHECK(free_bytes() == before + 2 * MIB);
}

// ---- pools and scopes ----

static void pools() {
    cudaStream_t stream = nullptr, other = nullptr;
    cudaMemPool_t pool = nullptr;
    unsigned long long threshold = ~0ULL;
    VRAM_CHECK(cudaStreamCreate(&stream));
    VRAM_CHECK(cudaStreamCreate(&other));
    VRAM_CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    VRAM_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    const std::size_t before = free_bytes();
    vram::Scope scope("pool", nullptr);
    {
        vram::PooledArray<char> first(64 * MIB, stream), second(64 * MIB, {stream, pool});
        VRAM_CHECK(cudaMemsetAsync(second.data(), 1, second.size(), stream));
        second.free_on(other);
    }
    VRAM_CHECK(cudaStreamSynchronize(stream));
    VRAM_CHECK(cudaStreamSynchronize(other));
    CHECK(before - free_bytes() == 128 * MIB);
    const vram::ScopeReport report = scope.end();
    CHECK(report.not_freed == 0 && report.owned == 0 && report.in_pool == 128 * static_cast<std::int64_t>(MIB));
    std::cout << report.text();
    CHECK(vram::trim_pools(64 * MIB) == 64 * static_cast<std::int64_t>(MIB));
    CHECK(vram::trim_pools() == 64 * static_cast<std::int64_t>(MIB) && vram::trim_pools() == 0);
    CHECK(before == free_bytes());
    VRAM_CHECK(cudaStreamDestroy(stream));
    VRAM_CHECK(cudaStreamDestroy(other));
}

static void scopes() {
    vram::DeviceArray<char> before(2 * MIB);
    void *leaked = nullptr;
    {
        vram::Scope clean("clean");
        vram::DeviceArray<char> inside(4 * MIB);
    }
    {
        vram::Scope outer("outer");
        vram::Scope inner("inner");
        VRAM_CHECK(cudaMalloc(&leaked, 4 * MIB));
    }
    {
        vram::Scope scope("owned");
        before = vram::DeviceArray<char>(10 * MIB);
    }
    {
        vram::Scope scope("freed more");
        before.free();
    }
    try {
        vram::Scope scope("thrown");
        before = vram::DeviceArray<char>(2 * MIB);
        throw std::runtime_error("on the way");
    } catch (const std::runtime_error &) {
    }
    vram::Scope told("told");
    vram::DeviceArray<char> small(4096);
    const vram::ScopeReport report = told.end(); // prints nothing later
    CHECK(report.name == "told" && report.owned == 4096 && told.end().owned == 4096);
    VRAM_CHECK(cudaFree(leaked));
}

// ---- traces and explanations ----

static void marks(const char *wanted) {
    const bool is_recorded = *wanted == '1';
    vram::DeviceArray<char> device(MIB);
    CHECK(vram::mark("epoch 3") == is_recorded && vram::mark("") == is_recorded);
}

static void explain(const char *deadline) {
    std::signal(SIGCHLD, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    auto began = std::chrono::steady_clock::now();
    std::cout << vram::explain_oom("$(touch it) `touch it`; out of memory\n", "0000:01:00.0",
                                   std::chrono::milliseconds(std::atoi(deadline)));
    auto took = std::chrono::steady_clock::now() - began;
    CHECK(took < std::chrono::milliseconds(std::atoi(deadline)) + std::chrono::seconds(20));
    CHECK(fcntl(3, F_GETFD) == -1);             // nothing is left open; 3 would be the first
    CHECK(waitpid(-1, nullptr, WNOHANG) == -1); // nor a child
}

static void explain_failure() {
    try {
        vram::DeviceArray<char> large(std::size_t(3) << 30);
    } catch (const vram::OutOfMemory &error) {
        std::cout << error.what() << "\n" << vram::explain_oom(error, std::chrono::minutes(2));
    }
}

int main(int count, char **words) {
    const std::map<std::string, void (*)()> programs = {
        {"every_owner", every_owner},
        {"moves", moves},
        {"empty", empty},
        {"no_room", no_room},
        {"failing_constructors", failing_constructors},
        {"failing_free", failing_free},
        {"broken_context", broken_context},
        {"reset", reset},
        {"threads", threads},
        {"two_gpus", two_gpus},
        {"own_context", own_context},
        {"end_of_the_process", end_of_the_process},
        {"forked", forked},
        {"pools", pools},
        {"scopes", scopes},
        {"explain_failure", explain_failure},
    };
    const std::string name = words[1];
    if (count == 3) {
        (name == "marks" ? marks : explain)(words[2]);
    } else if (name == "other_unit") {
        vram::DeviceArray<char> array = made_in_another_unit(4096);
        CHECK(owned() == 4096 && owned_in_another_unit() == 4096);
    } else {
        programs.at(name)();
    }
    std::cout << "done" << std::endl;
    return 0;
}
