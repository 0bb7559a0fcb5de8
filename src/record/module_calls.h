// How often a module had been called before, in a step: the calls of a run are paired with those of another within the
// same call of the same module. Two calls of a module with nothing recorded between them count as a single call. One
// thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

#include "hooks/op_call.h"

namespace op_tools {

class ModuleCalls {
 public:
  // Of the module in which `thread` makes this call; 0 for calls of backward, which their forward calls place.
  uint32_t of(uint32_t thread, OpCall& call, Phase phase);
  void step_begins() { threads_.clear(); }

 private:
  struct Thread {
    std::string last;                    // the module of the call before
    const std::string* asked = nullptr;  // where that path is, which lives until the process ends
    uint32_t number = 0;                 // the answer
    std::unordered_map<std::string, uint32_t> entered;
  };
  std::map<uint32_t, Thread> threads_;
};

}  // namespace op_tools
