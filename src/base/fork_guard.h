// The process that made it. A forked child has none of its parent's threads and finds locks as they were at that
// moment: what belongs to those has to be left alone there. Cheaper to ask than getpid(), which calls the system each
// time.
#pragma once

#include <cstdint>

namespace op_tools {

class ForkGuard {
 public:
  ForkGuard();
  bool in_child() const;  // this process was forked from the one that made the guard

 private:
  uint64_t forks_;
};

}  // namespace op_tools
