// The library has a call that frees what it keeps: an object owns the session and makes that call at its end, also
// when an exception ends it.
#include "../step.h"
#include "library.h"
#include <iostream>
#include <stdexcept>

struct LibrarySession {
    LibrarySession() = default;
    LibrarySession(const LibrarySession &) = delete;
    ~LibrarySession() {
        library::shut_down();
    }
    int score(int batch) {
        int answer = library::score(batch);
        if (answer < 0) throw std::runtime_error("the library has no memory");
        return answer;
    }
};

int main() {
    step("started");
    try {
        LibrarySession session;
        session.score(1);
        step("used once");
        session.score(2);
        step("used twice");
    } catch (const std::runtime_error &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    step("session ended");
    return 0;
}
