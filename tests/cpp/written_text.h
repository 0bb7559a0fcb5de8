// What is written to standard error meanwhile.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "catch.h"

namespace op_tools::test {

// Standard error goes to `fd` while this lives.
class Redirected {
 public:
  explicit Redirected(int fd) : saved_(dup(STDERR_FILENO)) {
    std::fflush(stderr);
    dup2(fd, STDERR_FILENO);
  }
  ~Redirected() {
    std::fflush(stderr);
    dup2(saved_, STDERR_FILENO);
    close(saved_);
  }

 private:
  int saved_;
};

template <class F>
std::string written_by(F&& f) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  {
    const Redirected redirected(fileno(file.get()));
    f();
  }
  std::fseek(file.get(), 0, SEEK_END);
  std::string text(static_cast<size_t>(std::ftell(file.get())), '\0');
  std::rewind(file.get());
  REQUIRE(std::fread(text.data(), 1, text.size(), file.get()) == text.size());
  return text;
}

}  // namespace op_tools::test
