// A C++ program: ./main NBYTES. It throws and catches all the time, which reads the list of loaded libraries.
#include "program.h"

#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Guard {
    explicit Guard(int &count) : count(count) {
        ++count;
    }
    ~Guard() {
        --count;
    }
    int &count;
};

int depth(int left, int &live) {
    Guard guard(live);
    if (left == 0) throw std::runtime_error("the end of " + std::to_string(live));
    return depth(left - 1, live) + 1;
}

void throw_again_and_again() {
    for (int round = 0;; round++) {
        int live = 0;
        std::vector<int> numbers(100 + round % 100);
        std::iota(numbers.begin(), numbers.end(), 0);
        int size = static_cast<int>(numbers.size());
        if (std::accumulate(numbers.begin(), numbers.end(), 0) != size * (size - 1) / 2) went_wrong("sum");
        try {
            depth(round % 20, live);
            went_wrong("nothing was thrown");
        } catch (const std::runtime_error &error) {
            if (live != 0 || std::string(error.what()) != "the end of " + std::to_string(round % 20 + 1))
                went_wrong("unwinding");
        }
        count_round();
    }
}

} // namespace

int main(int, char **argv) {
    start_cuda(std::strtoull(argv[1], nullptr, 10));
    std::thread(throw_again_and_again).detach();
    start_resting();
    return answer_lines();
}
